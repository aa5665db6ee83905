"""Releases, their revisions and the hosts' reports in the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table, Write, delete, put, put_new
from tidegate.common.sequences import Listed
from tidegate.errors import Conflict, RecordNotFound
from tidegate.notifications.notices import Notice, notice_write
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.records import item_of, record_from
from tidegate.releases.model import HOST_FAILED, LISTED_REVISIONS, STAGED, HostReport, Release, Revision

# Attributes of a report that a look at all hosts reads.
_REPORT = ("project_id", "agent_id", "name", "life", "revision", "state")
DUE_KIND = "release"
# Of a deleted release: its hosts may be offline for long.
_NUMBER_KEPT_SECONDS = 400 * 86400


class ReleaseStore:
    def __init__(self, table: Table) -> None:
        self._table = table
        # Revisions never change.
        self._revisions: dict[tuple[str, str, int], Revision] = {}

    def get(self, project_id: str, name: str) -> Release | None:
        item = self._table.get(keys.release(project_id, name), consistent=True)
        return record_from(Release, item) if item else None

    def require(self, project_id: str, name: str) -> Release:
        found = self.get(project_id, name)
        if found is None:
            raise RecordNotFound(f"this project has no release {name}: GET /v1/releases lists them")
        return found

    def all(self, project_id: str) -> list[Release]:
        """All releases of the project, from a consistent read.

        A stale goal would bring a withdrawn revision back."""
        found = self._table.query_all(keys.releases(project_id), consistent=True)
        return [record_from(Release, item) for item in found]

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Release]:
        page = self._table.page(keys.releases(project_id), limit=limit, cursor=cursor, consistent=True)
        return Listed([record_from(Release, item) for item in page.items], page.cursor)

    def save(
        self,
        before: Release,
        after: Release,
        *,
        revision: Revision | None = None,
        due_at: float | None = None,
        line: AuditLine | None = None,
        notice: Notice | None = None,
    ) -> Release:
        """Stores the changed release and its new revision. Conflict if the release has changed since it was read.

        `due_at`: when compensation checks that the roll-out is still watched. A write that changes only `counts` keeps
        the version. So the watcher, which writes the counts every few seconds, does not make a caller's change fail."""
        is_same = replace(after, counts=before.counts) == before
        saved = replace(after, version=before.version + (not is_same))
        item = keys.release(saved.project_id, saved.name) | item_of(saved) | {"targets": saved.targets.as_data()}
        if due_at is not None:
            item |= keys.due(saved.name, due_at, DUE_KIND)
        same = "#version = :version" if before.version else "attribute_not_exists(#pk)"
        values = {"version": before.version} if before.version else {}
        writes: list[Write] = [put(item, same, **values)]
        if revision is not None:
            key = keys.revision(saved.project_id, saved.name, revision.number)
            writes.append(put_new(key | item_of(revision)))
            old = revision.number - LISTED_REVISIONS
            if old > 0 and old not in (saved.former, before.former):
                writes.append(delete(keys.revision(saved.project_id, saved.name, old)))
        writes += [audit_write(line)] if line else []
        writes += [notice_write(notice)] if notice else []
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            raise Conflict(f"the release {saved.name} changed meanwhile: read it and try again") from error
        return saved

    def revision(self, project_id: str, name: str, number: int) -> Revision:
        place = (project_id, name, number)
        if place not in self._revisions:
            item = self._table.get(keys.revision(*place), consistent=True)
            if item is None:
                raise RecordNotFound(f"the release {name} has no revision {number}: GET …/revisions lists them")
            if len(self._revisions) > 500:
                self._revisions.clear()
            self._revisions[place] = record_from(Revision, item)
        return self._revisions[place]

    def revisions(self, project_id: str, name: str, limit: int, cursor: str | None) -> Listed[Revision]:
        pk = keys.revisions(project_id, name)
        page = self._table.page(pk, limit=limit, cursor=cursor, newest_first=True, consistent=True)
        return Listed([record_from(Revision, item) for item in page.items], page.cursor)

    def revision_numbers(self, project_id: str, name: str) -> Iterator[int]:
        """The numbers of the revisions, the newest first."""
        pk = keys.revisions(project_id, name)
        for item in self._table.query_all(pk, newest_first=True, consistent=True, project=("number",)):
            yield int(item["number"])

    # --- reports of hosts

    def reports_of_host(self, project_id: str, agent_id: str) -> dict[str, HostReport]:
        found = self._table.query_all(keys.host_releases(project_id, agent_id), consistent=True)
        return {item["name"]: record_from(HostReport, item) for item in found}

    def reports(self, project_id: str, name: str) -> Iterator[HostReport]:
        """The hosts' reports on a release, from an index, without reasons and other texts."""
        pk = keys.release_hosts(project_id, name)
        for item in self._table.query_all(pk, index="gsi1", project=_REPORT):
            yield record_from(HostReport, item)

    def whole_reports(self, project_id: str, name: str, agent_ids: Iterable[str]) -> dict[str, HostReport]:
        wanted = [keys.host_release(project_id, agent_id, name) for agent_id in agent_ids]
        found = self._table.batch_get(wanted, consistent=True)
        return {item["agent_id"]: record_from(HostReport, item) for item in found}

    def report(self, report: HostReport) -> bool:
        """Stores a report on a host. False if the stored report is newer.

        The stored report is newer if it is from a later life of the host, or has a higher revision in the same life.
        For the same revision, `staged` replaces only `staged`, and any other state replaces every state but `failed`.

        With GSE (`sent` is not 0), a report on the same revision replaces the stored one in any state. But no report
        replaces one with a higher `sent`."""
        key = keys.host_release(report.project_id, report.agent_id, report.name)
        listing = {"gsi1pk": keys.release_hosts(report.project_id, report.name), "gsi1sk": report.agent_id}
        newer = "#life < :life OR (#life = :life AND #revision < :revision)"
        values: dict[str, Any] = {"life": report.life, "revision": report.revision}
        same = "#life = :life AND #revision = :revision"
        if report.sent:
            newer = f"({newer} OR ({same})) AND (attribute_not_exists(#sent) OR #sent <= :sent)"
            values["sent"] = report.sent
        else:
            same += " AND #state = :state" if report.state == STAGED else " AND #state <> :state"
            newer, values["state"] = f"{newer} OR ({same})", STAGED if report.state == STAGED else HOST_FAILED
        item = key | item_of(report) | listing
        return self._table.try_write(put(item, f"attribute_not_exists(#pk) OR ({newer})", **values))

    def forget_host(self, project_id: str, agent_id: str, names: Sequence[str]) -> None:
        self._table.batch_delete(keys.host_release(project_id, agent_id, name) for name in names)

    def last_number(self, project_id: str, name: str) -> int:
        """The highest revision number of a deleted release with this name, or 0. Hosts may still have that revision."""
        item = self._table.get(keys.last_revision(project_id, name), consistent=True)
        return int(item["number"]) if item else 0

    def remove(self, release: Release, line: AuditLine, now: float) -> None:
        """Deletes the release, then its revisions and reports. If a crash leaves some of these, nothing uses them."""
        key, last = keys.release(release.project_id, release.name), keys.last_revision(release.project_id, release.name)
        gone = delete(key, "#version = :version", version=release.version)
        number = put(last | {"number": release.latest, "expires_at": int(now) + _NUMBER_KEPT_SECONDS})
        try:
            self._table.transact([gone, number, audit_write(line)])
        except ConditionFailed as error:
            raise Conflict(f"the release {release.name} changed meanwhile: read it and try again") from error
        # What has a higher number belongs to a release of this name that was put meanwhile.
        pk, place = keys.revisions(release.project_id, release.name), (release.project_id, release.name)
        highest = keys.revision(*place, release.latest)["sk"]
        # Consistent: no later call would delete a revision that was written just now and is not seen.
        found = self._table.query_all(pk, consistent=True, project=("pk", "sk"))
        self._table.batch_delete({"pk": item["pk"], "sk": item["sk"]} for item in found if item["sk"] <= highest)
        reports = (one for one in self.reports(*place) if one.revision <= release.latest)
        self._table.batch_delete(keys.host_release(one.project_id, one.agent_id, one.name) for one in reports)
