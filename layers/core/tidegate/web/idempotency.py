"""`Idempotency-Key` on POSTs that create something: the first answer is stored for a day and returned to repeats."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.middlewares import NextMiddleware

from tidegate.app import app as tidegate
from tidegate.aws import keys
from tidegate.errors import AlreadyCreated, IdempotencyConflict, IdempotencyInProgress, Invalid
from tidegate.web.routing import Caller, current_caller

_HEADER = "idempotency-key"
_KEPT_SECONDS = 24 * 3600
_LONGEST_KEY = 255
# A longer answer is stored in items of its own, because an item has at most 400 KB.
_LONGEST_BODY = 30_000
_PIECE_BYTES = 300_000


def idempotent(app: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """Route middleware: `@router.post(…, middlewares=[idempotent])`."""
    key = _key(app)
    if not key:
        return next_middleware(app)
    project_id = current_caller().project_id
    stored = _run_once(app, key, lambda: _stored_form(next_middleware(app), project_id))
    body = _read_pieces(project_id, stored["pieces"]) if "pieces" in stored else stored["body"]
    return Response(
        status_code=stored["status"],
        content_type=stored["content_type"],
        body=json.loads(body) if body is not None else None,
        headers=stored["headers"],
    )


def idempotent_secret(app: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """The same for answers that contain a secret: only ids are stored, and a repeat gets 409 with these ids."""
    key = _key(app)
    if not key:
        return next_middleware(app)
    responses: list[Response[Any]] = []

    def handle() -> dict[str, Any]:
        responses.append(next_middleware(app))
        return {"made": _ids_in(_jsonable(responses[0].body))}

    stored = _run_once(app, key, handle)
    if responses:
        return responses[0]
    created_ids = stored.get("made", {})
    names = ", ".join(f"{name} {value}" for name, value in created_ids.items())
    raise AlreadyCreated(
        f"the first request with this Idempotency-Key succeeded{f' and created {names}' if names else ''}. Its answer "
        "contained a secret, which is not stored: use a new Idempotency-Key to create another one",
        created_ids=created_ids,
    )


def _ids_in(body: Any) -> dict[str, str]:
    return {name: str(value) for name, value in body.items() if name.endswith("_id")} if isinstance(body, dict) else {}


def _key(app: APIGatewayHttpResolver) -> str | None:
    key = app.current_event.headers.get(_HEADER)
    if key and len(key) > _LONGEST_KEY:
        raise Invalid(
            f"the Idempotency-Key has {len(key)} characters: use at most {_LONGEST_KEY}",
            errors=[{"loc": ["header", _HEADER], "msg": f"must have at most {_LONGEST_KEY} characters"}],
        )
    return key


def _run_once(app: APIGatewayHttpResolver, key: str, handle: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `handle`: of this call, or the stored one of an earlier request with the same key."""
    # Imported here, because few requests have a key and the import adds 20 ms to a cold start.
    from aws_lambda_powertools.utilities.idempotency.exceptions import (
        IdempotencyAlreadyInProgressError,
        IdempotencyValidationError,
    )

    request = {"key": key, "route": app.current_event.path, "body": app.current_event.body or ""}
    run = _idempotent_function(current_caller(), key, app.lambda_context, handle)
    try:
        return run(request=request)
    except IdempotencyValidationError as error:
        raise IdempotencyConflict(
            "this Idempotency-Key was used within the last 24 hours with another path or body: use a new key"
        ) from error
    except IdempotencyAlreadyInProgressError as error:
        raise IdempotencyInProgress(
            "the first request with this Idempotency-Key is still running: repeat this request in two seconds",
            retry_after=2,
        ) from error


def _stored_form(response: Response[Any], project_id: str) -> dict[str, Any]:
    body = None if response.body is None else json.dumps(_jsonable(response.body))
    headers = {name: value for name, value in response.headers.items() if name.lower() != "content-type"}
    data = {"status": response.status_code, "content_type": response.content_type, "headers": headers}
    if body is not None and len(body) > _LONGEST_BODY:
        return data | {"pieces": _write_pieces(project_id, body)}
    return data | {"body": body}


def _write_pieces(project_id: str, body: str) -> str:
    """Returns the id under which the pieces are stored. It is random, so two runs never mix their pieces."""
    answer_id = uuid.uuid4().hex
    compressed = zlib.compress(body.encode())
    expires_at = int(tidegate().clock().timestamp()) + _KEPT_SECONDS
    tidegate().table.batch_put(
        keys.idempotent_answer(project_id, answer_id, number)
        | {"piece": compressed[start : start + _PIECE_BYTES], "expires_at": expires_at}
        for number, start in enumerate(range(0, len(compressed), _PIECE_BYTES))
    )
    return answer_id


def _read_pieces(project_id: str, answer_id: str) -> str:
    found = tidegate().table.query_all(keys.idempotent_answers(project_id, answer_id), consistent=True)
    return zlib.decompress(b"".join(bytes(item["piece"]) for item in found)).decode()


def _jsonable(body: Any) -> Any:
    return body.model_dump(mode="json", exclude_none=True) if hasattr(body, "model_dump") else body


def _idempotent_function(
    caller: Caller, key: str, context: Any, handle: Callable[[], dict[str, Any]]
) -> Callable[..., dict[str, Any]]:
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

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
        return handle()

    function: Callable[..., dict[str, Any]] = run
    return function
