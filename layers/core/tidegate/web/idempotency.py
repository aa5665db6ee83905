"""`Idempotency-Key` on creating POSTs: the first answer is kept for a day and given again."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.middlewares import NextMiddleware
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyValidationError,
)

from tidegate.app import app as tidegate
from tidegate.aws import keys
from tidegate.errors import AlreadyCreated, IdempotencyConflict, IdempotencyInProgress, Invalid
from tidegate.web.authentication import Caller, current_caller

_HEADER = "idempotency-key"
_KEPT_SECONDS = 24 * 3600
_LONGEST_KEY = 255
# An answer that is longer is kept beside its record: an item of the table holds 400 KB.
_LONGEST_BODY = 30_000
_PIECE_BYTES = 300_000


def idempotent(app: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """Route middleware: `@router.post(…, middlewares=[idempotent])`."""
    key = _key(app)
    if not key:
        return next_middleware(app)
    project_id = current_caller().project_id
    answer = _kept(app, key, lambda: _as_data(next_middleware(app), project_id))
    body = _read_pieces(project_id, answer["pieces"]) if "pieces" in answer else answer["body"]
    return Response(
        status_code=answer["status"],
        content_type=answer["content_type"],
        body=json.loads(body) if body is not None else None,
        headers=answer["headers"],
    )


def idempotent_secret(app: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """The same for an answer that holds a secret: of it only ids are kept, and a repeat is told what there is."""
    key = _key(app)
    if not key:
        return next_middleware(app)
    answers: list[Response[Any]] = []

    def act() -> dict[str, Any]:
        answers.append(next_middleware(app))
        return {"made": _ids_in(_jsonable(answers[0].body))}

    kept = _kept(app, key, act)
    if answers:
        return answers[0]
    made = kept.get("made", {})
    named = ", ".join(f"{name} {value}" for name, value in made.items())
    raise AlreadyCreated(
        f"the first request with this Idempotency-Key was carried out{f': {named}' if named else ''}. Its secret was "
        "shown then and is not stored; send another Idempotency-Key to create another one",
        made=made,
    )


def _ids_in(body: Any) -> dict[str, str]:
    return {name: str(value) for name, value in body.items() if name.endswith("_id")} if isinstance(body, dict) else {}


def _key(app: APIGatewayHttpResolver) -> str | None:
    key = app.current_event.headers.get(_HEADER)
    if key and len(key) > _LONGEST_KEY:
        raise Invalid(
            "the key is too long", errors=[{"loc": ["header", _HEADER], "msg": f"at most {_LONGEST_KEY} characters"}]
        )
    return key


def _kept(app: APIGatewayHttpResolver, key: str, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the act answered: now, or the first time."""
    request = {"key": key, "route": app.current_event.path, "body": app.current_event.body or ""}
    once = _once(current_caller(), key, app.lambda_context, act)
    try:
        return once(request=request)
    except IdempotencyValidationError as error:
        raise IdempotencyConflict(
            "this Idempotency-Key came within 24 hours with another request; use a new one"
        ) from error
    except IdempotencyAlreadyInProgressError as error:
        raise IdempotencyInProgress(
            "the first request with this key has not been answered yet", retry_after=2
        ) from error


def _as_data(response: Response[Any], project_id: str) -> dict[str, Any]:
    body = None if response.body is None else json.dumps(_jsonable(response.body))
    headers = {name: value for name, value in response.headers.items() if name.lower() != "content-type"}
    data = {"status": response.status_code, "content_type": response.content_type, "headers": headers}
    if body is not None and len(body) > _LONGEST_BODY:
        return data | {"pieces": _write_pieces(project_id, body)}
    return data | {"body": body}


def _write_pieces(project_id: str, body: str) -> str:
    """Under a name of its own, so that two runs of one request never mix their pieces. Returns that name."""
    answer_id = uuid.uuid4().hex
    packed = zlib.compress(body.encode())
    expires_at = int(tidegate().clock().timestamp()) + _KEPT_SECONDS
    tidegate().table.batch_put(
        keys.idempotent_answer(project_id, answer_id, number)
        | {"piece": packed[start : start + _PIECE_BYTES], "expires_at": expires_at}
        for number, start in enumerate(range(0, len(packed), _PIECE_BYTES))
    )
    return answer_id


def _read_pieces(project_id: str, answer_id: str) -> str:
    found = tidegate().table.query_all(keys.idempotent_answers(project_id, answer_id), consistent=True)
    return zlib.decompress(b"".join(bytes(item["piece"]) for item in found)).decode()


def _jsonable(body: Any) -> Any:
    return body.model_dump(mode="json", exclude_none=True) if hasattr(body, "model_dump") else body


def _once(caller: Caller, key: str, context: Any, act: Callable[[], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    store = DynamoDBPersistenceLayer(
        table_name=tidegate().settings.table_name,
        key_attr="pk",
        sort_key_attr="sk",
        static_pk_value=keys.idempotency(caller.project_id, key),
        expiry_attr="expires_at",
        boto3_client=tidegate().dynamodb,
    )
    config = IdempotencyConfig(
        event_key_jmespath="key",
        payload_validation_jmespath="[route, body]",
        expires_after_seconds=_KEPT_SECONDS,
        lambda_context=context,
    )

    @idempotent_function(
        data_keyword_argument="request", persistence_store=store, config=config, key_prefix="idempotent"
    )
    def run(*, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - Powertools takes the key from it
        return act()

    kept: Callable[..., dict[str, Any]] = run
    return kept
