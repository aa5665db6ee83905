"""Routes for the compensation poll, which starts overdue work: its state, and a trigger."""

from __future__ import annotations

from tidegate.app import app
from tidegate.common.ids import iso
from tidegate.compensation.interval import PollState
from tidegate.web.routing import Router
from tidegate.web.schemas import Answer

router = Router()
_TAGS = ["Operations"]


class CompensationAnswer(Answer):
    interval_s: int
    multiplier: int
    queue_size: int
    last_poll: str | None
    next_poll: str
    compensated_total: int


def _shown(poll: PollState, queue_size: int) -> CompensationAnswer:
    return CompensationAnswer(
        interval_s=poll.interval_s,
        multiplier=max(1, poll.multiplier),
        queue_size=queue_size,
        last_poll=iso(poll.last_poll) if poll.last_poll else None,
        next_poll=iso(poll.next_poll),
        compensated_total=poll.compensated_total,
    )


@router.get("/v1/compensation", scope="read", tags=_TAGS, summary="Get the state of the poll for overdue work")
def show() -> CompensationAnswer:
    return _shown(*app().compensation.poll.status())


@router.post("/v1/compensation/trigger", scope="admin", tags=_TAGS, summary="Poll for overdue work now")
def trigger() -> CompensationAnswer:
    app().compensation.poll.trigger(router.caller.key_id)
    return _shown(*app().compensation.poll.status())
