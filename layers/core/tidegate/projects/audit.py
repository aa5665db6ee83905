"""The audit trail: who changed which record, when and why. A line is written in the same transaction as the change."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from tidegate.aws import keys
from tidegate.aws.table import Item, Store, Write, decode_cursor, encode_cursor, put, unknown_cursor
from tidegate.common.ids import iso
from tidegate.common.sequences import Listed
from tidegate.records import F, item_of, record_from

SYSTEM = "system"
# Actions on the whole deployment (queue control, clean-up, new projects) are listed under this id; only admins see it.
NO_PROJECT = "_system"
_LONGEST_WHY = 1000


@dataclass(frozen=True, slots=True)
class AuditLine:
    """`who` is the caller's key_id, or `system` for what Tidegate does by itself."""

    project_id: str
    record_id: Annotated[str, F("id of the record that was changed", shown="record")]
    at: Annotated[str, F("when, ISO 8601 UTC")]
    who: Annotated[str, F("the same as `actor`; its older name")]
    action: Annotated[str, F("what was done, such as `key.create`")]
    from_state: Annotated[str | None, F("the state before the change", shown="from")] = None
    to_state: Annotated[str | None, F("the state after the change", shown="to")] = None
    why: Annotated[str, F("the reason, if there is one")] = ""
    attempt: Annotated[int, F("attempt of the request, from 1; 0 for other records")] = 0
    # Orders the lines of one record within a millisecond.
    version: int = 0

    @property
    def actor(self) -> Annotated[str, F("key_id of whoever made the change, or `system`")]:
        return self.who


def named_at(name: str, url: str) -> str:
    """Returns `name at host`, for an audit line. The rest of the URL is left out, because it may contain a secret."""
    return f"{name} at {urlsplit(url).hostname}"


def act(
    project_id: str,
    record_id: str,
    now: datetime,
    who: str,
    action: str,
    why: str = "",
    *,
    states: tuple[str | None, str | None] = (None, None),
) -> AuditLine:
    """Returns the audit line of one action: `act(project_id, key_id, now, caller.key_id, "key.revoke")`.

    A store writes the line in the same transaction as the change, with `audit_write`.
    """
    return AuditLine(project_id, record_id, iso(now), who, action, *states, why[:_LONGEST_WHY])


_KEPT = timedelta(days=60)
# In the class below, `list` is a method.
Items = list[Item]
_ORDER = re.compile(r"[0-9TZ:.#a-f-]{1,60}")
# A filtered list reads at most this many pages of a partition, then returns what it found with a cursor.
_PAGES, _PAGE_SIZE = 5, 200


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What the listed audit lines must match. A field that is None matches all lines.

    `since` and `until` are inclusive.
    """

    record: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def audit_item(line: AuditLine) -> Item:
    tail = secrets.token_hex(4)
    order = f"{line.at}#{line.version:08d}#{tail}"
    spread = int(tail, 16) % keys.AUDIT_SPREAD
    expires_at = datetime.fromisoformat(line.at) + _KEPT
    item = {"pk": keys.audit_trail(line.project_id, line.record_id), "sk": order} | item_of(line)
    item |= {"gsi1pk": keys.audit_list(line.project_id, spread), "gsi1sk": order}
    if line.who != SYSTEM:
        item |= {"gsi2pk": keys.audit_by_actor(line.project_id, line.who, spread), "gsi2sk": order}
    return item | {"expires_at": int(expires_at.timestamp())}


def audit_write(line: AuditLine) -> Write:
    return put(audit_item(line))


class AuditStore(Store):
    """The audit trail in the table. A line is written in the same transaction as the change that it describes."""

    def record(self, line: AuditLine) -> None:
        """Writes the line of an action that itself writes nothing to the table. Call this method before the action.

        After a crash in between, the trail shows an action that was not done. In the other order, a crash could lose
        the line.
        """
        self._table.write(audit_write(line))

    def list(self, project_id: str, limit: int, cursor: str | None, wanted: AuditFilter) -> Listed[AuditLine]:
        """Returns a page of lines, newest first, from the partitions of the record, of the actor or of the project.

        Each partition is read only back to a certain time. Lines older than the latest of these times are left for the
        next page, because another partition may still have unread lines of that age.
        """
        before = _position(cursor)
        found: Items = []
        complete_to = ""
        for pk in self._partitions(project_id, wanted):
            items, reached = self._read(pk, wanted, before, limit)
            found += items
            complete_to = max(complete_to, reached)
        found = sorted((item for item in found if item["sk"] >= complete_to), key=_order, reverse=True)
        following = str(found[limit - 1]["sk"]) if len(found) > limit else complete_to
        return Listed(
            [record_from(AuditLine, item) for item in found[:limit]], _cursor(following) if following else None
        )

    @staticmethod
    def _partitions(project_id: str, wanted: AuditFilter) -> Sequence[str]:
        if wanted.record:
            return [keys.audit_trail(project_id, wanted.record)]
        if wanted.actor and wanted.actor != SYSTEM:
            return [keys.audit_by_actor(project_id, wanted.actor, spread) for spread in range(keys.AUDIT_SPREAD)]
        return [keys.audit_list(project_id, spread) for spread in range(keys.AUDIT_SPREAD)]

    def _read(self, pk: str, wanted: AuditFilter, before: str | None, limit: int) -> tuple[Items, str]:
        """Returns the newest matching lines of one partition, and the sort key where reading stopped.

        The sort key is empty if the partition was read to its end.
        """
        index = None if wanted.record else "gsi2" if wanted.actor and wanted.actor != SYSTEM else "gsi1"
        given: dict[str, Any] = {"who": wanted.actor, "action": wanted.action}
        values = {name: value for name, value in given.items() if value}
        where = " AND ".join(f"#{name} = :{name}" for name in values)
        low = iso(wanted.since) if wanted.since else " "
        high = min(before or "~", f"{iso(wanted.until)}~" if wanted.until else "~")
        if low > high:
            return [], ""
        found: Items = []
        cursor: str | None = None
        for _ in range(_PAGES):
            # Two more than needed: the upper bound itself was on the page before, and one tells if more follow.
            size = _PAGE_SIZE if where else limit + 2
            page = self._table.query(
                pk,
                index=index,
                newest_first=True,
                sk_between=(low, high),
                limit=size,
                cursor=cursor,
                where=where,
                **values,
            )
            found += [item for item in page.items if item["sk"] != before]
            cursor = page.cursor
            if len(found) > limit:
                return found[:limit], _order(found[limit - 1])
            if cursor is None:
                return found, ""
        return found, str(decode_cursor(cursor or "")["sk"]["S"])


def _order(item: Item) -> str:
    return str(item["sk"])


def _cursor(order: str) -> str:
    return encode_cursor({"before": {"S": order}})


def _position(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    position = decode_cursor(cursor).get("before", {}).get("S")
    if not isinstance(position, str) or not _ORDER.fullmatch(position):
        raise unknown_cursor()
    return position
