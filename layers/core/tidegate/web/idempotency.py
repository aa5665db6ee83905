"""`Idempotency-Key` on POSTs that create something: a repeat within a day creates nothing and gets the first answer.

The transaction that creates a record also notes the record at the key (`noted` in `aws/table.py`). So a repeat knows of
the record, wherever the first run died, and need not wait for that run.

If nothing is noted, the first run may still be at work. The repeat waits until the first run has had the key for some
seconds. Then it takes the key over, and from then on the first run can create nothing.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import uuid
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.middlewares import NextMiddleware
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.app import app as tidegate
from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, RequestClaim, Write, claimed, delete, put, update
from tidegate.common.ids import iso
from tidegate.errors import AlreadyCreated, DomainError, IdempotencyConflict, IdempotencyInProgress, Invalid
from tidegate.web.routing import current_caller

logger = Logger(service="tidegate", child=True)

_HEADER = "idempotency-key"
_KEPT_SECONDS = 24 * 3600
_LONGEST_KEY = 255
# A longer answer is stored in items of its own, because an item has at most 400 KB.
_LONGEST_BODY = 30_000
_PIECE_BYTES = 300_000
# How long a run that has created nothing keeps the key. Each run that takes over has twice as long, so that one of
# them ends even if all of them are slow.
_HELD_SECONDS = 5.0
_IN_PROGRESS, _COMPLETED = "INPROGRESS", "COMPLETED"


def idempotent(app: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """Route middleware: `@router.post(…, middlewares=[idempotent])`.

    If an earlier run died, the route is run again. The route learns from `made_before` what the earlier run has
    created.
    """
    key = _key(app)
    if not key:
        return next_middleware(app)
    project_id = current_caller().project_id

    def handle(made: Mapping[str, str] | None) -> dict[str, Any]:
        try:
            return _stored_form(next_middleware(app), project_id)
        except DomainError as error:
            if made is None or error.status >= 500 or error.status == 429:
                raise
            # It has changed since, so that the first answer can no longer be made.
            raise _already_created(made, "Its answer was not stored") from error

    stored = _run_once(app, key, handle)
    body = _read_pieces(project_id, stored["pieces"]) if "pieces" in stored else stored["body"]
    return Response(
        status_code=stored["status"],
        content_type=stored["content_type"],
        body=json.loads(body) if body is not None else None,
        headers=stored["headers"],
    )


def idempotent_secret(app: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """Route middleware like `idempotent`, for answers that contain a secret.

    Of such an answer, only the ids are stored. A repeat gets 409 with these ids.
    """
    key = _key(app)
    if not key:
        return next_middleware(app)
    responses: list[Response[Any]] = []

    def handle(made: Mapping[str, str] | None) -> dict[str, Any]:
        if made is None:
            responses.append(next_middleware(app))
            made = _jsonable(responses[0].body)
        return {"made": _ids_in(made)}

    stored = _run_once(app, key, handle)
    if responses:
        return responses[0]
    raise _already_created(
        stored.get("made", {}),
        "Its answer contained a secret, which is not stored: use a new Idempotency-Key to create another one",
    )


def _already_created(made: Mapping[str, str], why: str) -> AlreadyCreated:
    ids = _ids_in(made)
    names = ", ".join(f"{name} {value}" for name, value in ids.items())
    created = f" and created {names}" if names else ""
    return AlreadyCreated(f"the first request with this Idempotency-Key succeeded{created}. {why}", created_ids=ids)


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


def _run_once(
    app: APIGatewayHttpResolver, key: str, handle: Callable[[Mapping[str, str] | None], dict[str, Any]]
) -> dict[str, Any]:
    """Returns what an earlier request with the key has stored. If nothing is stored, returns what `handle` returns.

    If an earlier run created something and died, `handle` gets the ids of what it created. Otherwise `handle` gets
    None.
    """
    event, lasts = app.current_event, app.lambda_context.get_remaining_time_in_millis() / 1000
    held = _hold(keys.idempotency(current_caller().project_id, key), _digest([event.path, event.body or ""]), lasts)
    if held["status"] == _COMPLETED:
        stored: dict[str, Any] = json.loads(held["data"])
        return stored
    place = {"pk": held["pk"], "sk": held["sk"]}
    claim = RequestClaim(place, held["run"], held["seed"], held["began"], held.get("made"))
    try:
        with claimed(claim):
            stored = handle(claim.made)
    except Exception as error:
        # Nothing was created, or what was created is refused: the same request may succeed later.
        refused = "made" not in held and isinstance(error, DomainError) and error.status < 500
        free = "#run = :run" if refused else "#run = :run AND attribute_not_exists(#made)"
        _try_write(delete(place, free, run=claim.run))
        raise
    expires_at = int(tidegate().clock().timestamp()) + _KEPT_SECONDS
    sets = {"status": _COMPLETED, "data": json.dumps(stored), "expires_at": expires_at}
    _try_write(update(place, sets, condition="#run = :run", run=claim.run))
    return stored


def _hold(place: dict[str, str], validation: str, lasts: float) -> dict[str, Any]:
    """Returns the key's item. From now on, this run holds the key, unless an earlier run has completed.

    `lasts`: how many seconds this run may last. Raises IdempotencyInProgress if another run holds the key, and
    IdempotencyConflict if the key was used for another request.
    """
    table, now = tidegate().table, tidegate().clock()
    millis, run = int(now.timestamp() * 1000), secrets.token_hex(8)
    own: dict[str, Any] = {
        "run": run,
        "in_progress_expiration": millis + int(min(lasts, _HELD_SECONDS) * 1000),
        "seed": secrets.token_hex(16),
        "began": iso(now),
    }
    expires_at = int(now.timestamp()) + _KEPT_SECONDS
    item = place | own | {"status": _IN_PROGRESS, "validation": validation, "expires_at": expires_at}
    free = "attribute_not_exists(#pk) OR #expires_at < :now"
    try:
        return table.write(put(item, free, now=int(now.timestamp())))
    except ConditionFailed as refused:
        held = refused.item or {}
    if held.get("validation", validation) != validation:
        raise IdempotencyConflict(
            "this Idempotency-Key was used within the last 24 hours with another path or body: use a new key"
        )
    # Its own, if the answer to the write was lost and the SDK repeated it.
    if held.get("run") == run or held.get("status") == _COMPLETED:
        return held
    if not held or ("made" not in held and held["in_progress_expiration"] >= millis):
        raise _in_progress()
    runs = min(int(held.get("runs", 0)) + 1, 10)
    until = millis + int(min(lasts, _HELD_SECONDS * 2**runs) * 1000)
    # An item of an earlier version has no seed.
    kept = {name: held[name] for name in ("seed", "began") if name in held}
    same = {"running": _IN_PROGRESS, "seen": held["in_progress_expiration"]}
    try:
        return table.write(
            update(
                place,
                own | kept | {"runs": runs, "in_progress_expiration": until},
                condition="#status = :running AND #in_progress_expiration = :seen",
                **same,
            )
        )
    except ConditionFailed as refused:
        if refused.item and refused.item.get("run") == run:
            return refused.item
        raise _in_progress() from refused


def _in_progress() -> IdempotencyInProgress:
    return IdempotencyInProgress(
        "the first request with this Idempotency-Key is still running: repeat this request in two seconds",
        retry_after=2,
    )


def _try_write(write: Write) -> None:
    """Performs the write. If it fails, a repeat of the request waits for some seconds, or makes the answer again."""
    try:
        tidegate().table.try_write(write)
    except (ClientError, BotoCoreError, DomainError):
        logger.exception("the end of a request was not stored at its Idempotency-Key")


def _digest(values: list[str]) -> str:
    # The form in which Powertools stored it.
    return hashlib.md5(json.dumps(values).encode(), usedforsecurity=False).hexdigest()


def _stored_form(response: Response[Any], project_id: str) -> dict[str, Any]:
    body = None if response.body is None else json.dumps(_jsonable(response.body))
    headers = {name: value for name, value in response.headers.items() if name.lower() != "content-type"}
    data = {"status": response.status_code, "content_type": response.content_type, "headers": headers}
    if body is not None and len(body) > _LONGEST_BODY:
        return data | {"pieces": _write_pieces(project_id, body)}
    return data | {"body": body}


def _write_pieces(project_id: str, body: str) -> str:
    """Stores a long answer in pieces. Returns the id of the pieces.

    The id is random, so that two runs never mix their pieces.
    """
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
