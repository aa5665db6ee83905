"""Files, contents and open uploads in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.s3 import PARTS_LISTED
from tidegate.aws.table import ConditionFailed, Table, Write, delete, noted, put_new, update
from tidegate.common.ids import iso
from tidegate.common.sequences import Listed
from tidegate.errors import Busy, InUse, QuotaExceeded, RecordNotFound, WrongState
from tidegate.files.model import (
    COMING,
    FAILED,
    MOST_PARTS,
    PENDING,
    READY,
    VERIFYING,
    File,
    content_object,
    upload_kept_seconds,
)
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.projects.limits import Room, UsageStore, stored_bytes_write, upload_closed_write
from tidegate.records import item_of, record_from

# --- open uploads
# Uploads that were announced and may still bring bytes into the bucket. They count towards the project's quotas.
#
# An upload is open until its content counts as stored, or until its object is deleted and cannot come back. The object
# is deleted first: after a crash in between, an upload counts for too long, but never too little.

_TRIES = 4
# How many records one announcement reads, and how many abandoned uploads it removes, at most.
_MOST_READ, _MOST_ABANDONED = 1000, 200
# How many parts of a file without a size may have a URL at once, so that its record stays small.
_MOST_ASKED = 200


@dataclass(frozen=True, slots=True)
class OpenUpload:
    project_id: str
    file_id: str
    # The size that counts. If none was announced: what was left of the quota, or 0 without a quota.
    size: int
    # In seconds since 1970. Not named `expires_at`: the table's TTL would delete the record, and it would stay counted.
    until: int
    upload_id: str | None = None
    # Whether its content did not fit into the quota; it may be completed as long as no other upload needs the room.
    refused: bool = False
    # For an upload in parts without a size: the bytes of parts whose URLs have expired, and for each other part with a
    # URL, by its number, (expiry of the URL, most bytes of the part).
    settled: int = 0
    asked: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def with_parts(self, now: float, have: Mapping[int, int], lengths: Mapping[int, int], until: int) -> OpenUpload:
        """Returns the upload with further parts of at most these `lengths`. QuotaExceeded if too many parts have a URL.

        `have`: the sizes of the parts that S3 has. While the URL of a part is valid, the part counts with the most
        bytes that it can get. After that, it counts with its size in S3.
        """
        known_to = max(have, default=0) if len(have) >= PARTS_LISTED else MOST_PARTS
        over = [number for number, (end, _) in self.asked.items() if end < now and int(number) <= known_to]
        left = {number: entry for number, entry in self.asked.items() if number not in over}
        settled = self.settled + sum(have.get(int(number), 0) for number in over)
        asked = dict(left)
        for number, length in lengths.items():
            # An earlier URL of the part may still be valid, and may allow more.
            end, most = left.get(str(number), (0, 0))
            asked[str(number)] = (max(end, until), max(most, length))
        if len(asked) > _MOST_ASKED:
            raise QuotaExceeded(
                f"{len(left)} parts of this file have a URL, and at most {_MOST_ASKED} may: announce its size, or ask "
                "again when their URLs have ended",
                retry_after=max(1.0, min((end for end, _ in left.values()), default=now) - now),
            )
        return replace(self, settled=settled, asked=asked, size=settled + sum(most for _, most in asked.values()))


def _kept_until(file: File) -> int:
    announced = int(datetime.fromisoformat(file.created_at).timestamp())
    return announced + upload_kept_seconds(in_parts=file.upload_id is not None)


class OpenUploads:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._usage = UsageStore(table)

    def open_writes(self, file: File) -> list[Write]:
        """Returns the writes that count an announced upload. QuotaExceeded if the upload does not fit."""
        until = _kept_until(file)
        # An upload in parts of unknown size counts when the caller asks for parts.
        announced = 0 if file.upload_id and file.size is None else file.size
        size, counted = self._usage.upload_opened_writes(file.project_id, announced)
        opened = OpenUpload(file.project_id, file.file_id, size, until, file.upload_id)
        record = {name: value for name, value in asdict(opened).items() if value is not None and value != {}}
        return [put_new(keys.open_upload(file.project_id, file.file_id) | record), *counted]

    def grow(self, grown: Callable[[OpenUpload], OpenUpload], project_id: str, file_id: str) -> None:
        """Counts an upload with the size that `grown` gives it, or with all the room that is left.

        QuotaExceeded if no room is left.
        """
        for _ in range(_TRIES):
            opened = self.get(project_id, file_id)
            if opened is None:
                # It was announced before open uploads were counted, or has ended.
                return
            made = grown(opened)
            size, counted = self._usage.upload_grown_writes(project_id, opened.size, made.size)
            sets = {"size": size, "settled": made.settled, "asked": {n: list(one) for n, one in made.asked.items()}}
            same = "#size = :seen AND (attribute_not_exists(#asked) OR #asked = :asked)"
            key, asked = keys.open_upload(project_id, file_id), {n: list(one) for n, one in opened.asked.items()}
            if self._table.try_write(update(key, sets, condition=same, seen=opened.size, asked=asked), *counted):
                return
        raise Busy("too many uploads ask for parts at once: try again in a few seconds")

    def are_limited(self, project_id: str) -> bool:
        """Whether the project has a quota of stored bytes."""
        return self._usage.stored_bytes_limit(project_id) is not None

    def refuse(self, opened: OpenUpload) -> None:
        """Marks an upload whose content did not fit. It is removed if the next announcement needs its room."""
        key = keys.open_upload(opened.project_id, opened.file_id)
        self._table.try_write(update(key, {"refused": True}))

    def get(self, project_id: str, file_id: str) -> OpenUpload | None:
        """Returns the open upload. None if it has ended, or if it was announced before open uploads were counted."""
        item = self._table.get(keys.open_upload(project_id, file_id), consistent=True)
        return record_from(OpenUpload, item) if item else None

    def close(self, project_id: str, file_id: str) -> None:
        """Stops counting an upload whose object is gone. Does nothing if the upload is not open."""
        if opened := self.get(project_id, file_id):
            self._table.try_write(closed_record(opened), upload_closed_write(project_id, opened.size))

    def abandoned(self, project_id: str, now: datetime) -> list[OpenUpload]:
        """Returns the oldest of those uploads that did not end in time, or whose content did not fit."""
        page = self._table.query(keys.open_uploads(project_id), limit=_MOST_READ, consistent=True)
        found = [record_from(OpenUpload, item) for item in page.items]
        return [one for one in found if one.refused or one.until < now.timestamp()][:_MOST_ABANDONED]


def closed_record(opened: OpenUpload) -> Write:
    """Returns the write that deletes the record of an open upload. It fails if there is no such record.

    Put it into the transaction that stops counting the upload. This transaction then succeeds only once.
    """
    return delete(keys.open_upload(opened.project_id, opened.file_id), "attribute_exists(#pk)")


# How many ingests are stored as fetching one content, so that its record stays small.
_MOST_BRINGING = 1000


@dataclass(frozen=True, slots=True)
class Stored:
    """The verified object that a content's record points to."""

    key: str
    etag: str
    piece_size: int | None = None
    pieces_sha256: str | None = None
    blocks_sha256: str | None = None

    def as_data(self) -> dict[str, Any]:
        pieces = {
            "piece_size": self.piece_size,
            "pieces_sha256": self.pieces_sha256,
            "blocks_sha256": self.blocks_sha256,
        }
        return {"object": self.key, "checked_etag": self.etag, **pieces}


# In the class below, `list` is a method.
Writes = list[Write]


def file_from(item: dict[str, Any]) -> File:
    return record_from(File, item)


def file_item(file: File) -> dict[str, Any]:
    place = keys.files_at_path(file.project_id, str(file.biz_id), str(file.app_id), file.file_path)
    return (
        keys.file(file.project_id, file.file_id)
        | item_of(file)
        | {"gsi1pk": keys.files_list(file.project_id), "gsi1sk": file.file_id, "gsi2pk": place, "gsi2sk": file.file_id}
    )


def _kept(file: File, name: str) -> Write:
    """Returns the write that keeps the object `name`.

    It writes an owner record. The daily sweep deletes no object that has such a record.
    """
    owner = keys.content(file.project_id, name)
    return update(owner, {"file_id": file.file_id}, removes=("expires_at",), condition="")


class FileStore:
    """Files in the table: one record for each file, and one for each content of a project."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._usage = UsageStore(table)
        self.open_uploads = OpenUploads(table)

    def require_room(self, project_id: str, size: int) -> Room:
        """Returns the room that is left. QuotaExceeded if the project may not store that many more bytes."""
        return self._usage.require_room(project_id, size)

    def add(self, file: File, line: AuditLine) -> None:
        """Adds an announced upload, and an owner record that keeps the daily sweep from deleting its object.

        Both records expire, unless the upload is completed. QuotaExceeded if the upload does not fit.
        """
        expires_at = _kept_until(file)
        owner = keys.content(file.project_id, file.file_id) | {"file_id": file.file_id, "expires_at": expires_at}
        record = file_item(file) | {"expires_at": expires_at}
        for _ in range(_TRIES):
            opened = self.open_uploads.open_writes(file)
            try:
                note = noted(file_id=file.file_id)
                self._table.transact([put_new(record), put_new(owner), audit_write(line), *opened, *note])
            except ConditionFailed as error:
                if 0 in error.failed:
                    raise
                # The project's stored or announced bytes have grown: read them again.
            else:
                return
        raise Busy("too many uploads are announced or completed at once: try again in a few seconds")

    def get(self, project_id: str, file_id: str) -> File | None:
        item = self._table.get(keys.file(project_id, file_id), consistent=True)
        return file_from(item) if item else None

    def require(self, project_id: str, file_id: str) -> File:
        """Returns the file. RecordNotFound if the project has no such file."""
        file = self.get(project_id, file_id)
        if file is None:
            raise RecordNotFound(f"this project has no file with the id {file_id}")
        return file

    def find(self, project_id: str, place: tuple[int, int, str], limit: int, cursor: str | None) -> Listed[File]:
        """Returns the files at one (biz_id, app_id, file_path), newest first."""
        biz_id, app_id, path = place
        partition = keys.files_at_path(project_id, str(biz_id), str(app_id), path)
        page = self._table.page(partition, index="gsi2", newest_first=True, limit=limit, cursor=cursor)
        return Listed([file_from(item) for item in self._table.current(page.items)], page.cursor)

    def list(self, project_id: str, limit: int, cursor: str | None, **wanted: object) -> Listed[File]:
        page = self._table.find(keys.files_list(project_id), limit=limit, cursor=cursor, wanted=wanted)
        return Listed([file_from(item) for item in page.items], page.cursor)

    def verifying_writes(self, file: File, line: AuditLine) -> Writes:
        """Returns the writes for an upload that is complete and waits to be verified.

        From then on, the daily sweep does not delete the upload's object.
        """
        return [
            update(
                keys.file(file.project_id, file.file_id),
                {"state": VERIFYING, "size": file.size, "request_id": file.request_id},
                removes=("expires_at",),
                condition="#state = :pending",
                pending=PENDING,
            ),
            _kept(file, file.file_id),
            audit_write(line),
        ]

    def finish_writes(self, file: File, *, was: Sequence[str], stored: Stored | None = None) -> Writes:
        """Returns the writes that make a file ready or failed and record its content, for one transaction.

        `was`: the states in which the file may be now. `stored`: the new object of the content. It is None if the
        content was stored before, or if the file failed.
        """
        names = ("state", "signature", "size", "error", "source_etag")
        allowed: dict[str, Any] = {f"was{index}": state for index, state in enumerate(was)}
        writes = [
            update(
                keys.file(file.project_id, file.file_id),
                {name: getattr(file, name) for name in names},
                # An upload that is refused still expires.
                removes=[*(() if file.error else ("error",)), *(() if file.state == FAILED else ("expires_at",))],
                condition=f"#state IN ({', '.join(f':{name}' for name in allowed)})",
                **allowed,
            )
        ]
        opened = None
        if stored and was and was[0] in (PENDING, VERIFYING):
            # Its bytes count as stored from now on. Other uploads count until their object is deleted.
            opened = self.open_uploads.get(file.project_id, file.file_id)
            writes += [closed_record(opened)] if opened else []
        if file.state == READY and file.signature:
            writes += self._content_writes(file, stored, opened)
        if stored:
            writes.append(_kept(file, stored.key.rsplit("/", 1)[-1]))
        elif was and was[0] in (PENDING, VERIFYING):
            writes.append(delete(keys.content(file.project_id, file.file_id)))
        return writes

    def coming_writes(self, file: File, *, brings_content: bool = True) -> Writes:
        """Returns the writes for a file that an ingest request will fetch. Its content is `coming` from then on.

        Content that is stored already stays `ready`.
        """
        return [put_new(file_item(file)), *(self._content_coming_writes(file) if brings_content else [])]

    def _content_coming_writes(self, file: File) -> Writes:
        if not file.signature:
            return []
        key = keys.content(file.project_id, file.signature)
        present = self._table.get(key, consistent=True) or {}
        if present.get("state") == READY:
            return []
        has_room = len(present.get("bringing", ())) < _MOST_BRINGING
        return [
            update(
                key,
                {"signature": file.signature, "state": COMING},
                adds={"bringing": {file.file_id}} if has_room else None,
                condition="attribute_not_exists(#state) OR #state <> :ready",
                ready=READY,
            )
        ]

    def lost_writes(self, project_id: str, file_id: str, error: str) -> Writes:
        """Returns the writes for a file whose ingest failed.

        If another ingest fetches the file's content, the content stays `coming`.
        """
        file = self.get(project_id, file_id)
        if file is None or file.state == READY:
            return []
        was = (VERIFYING, FAILED) if file.state == VERIFYING else (COMING, FAILED)
        writes = self.finish_writes(replace(file, state=FAILED, error=error), was=was)
        content = self._table.get(keys.content(project_id, file.signature), consistent=True) if file.signature else None
        if content and content.get("state") == COMING:
            # No state is written: another ingest may begin or fail at this moment. See `content_state`.
            takes = {"bringing": {file_id}} if file_id in content.get("bringing", ()) else None
            removes = ("brought_by",) if content.get("brought_by") == file_id else ()
            if takes or removes:
                writes.append(update(keys.content(project_id, str(file.signature)), takes=takes, removes=removes))
        return writes

    def again_writes(self, project_id: str, file_id: str, *, brings_content: bool) -> Writes:
        """Returns the writes for a failed file that is fetched again."""
        file = self.get(project_id, file_id)
        if file is None or file.state != FAILED:
            return []
        again = replace(file, state=COMING, error=None)
        return [
            *self.finish_writes(again, was=(FAILED,)),
            *(self._content_coming_writes(again) if brings_content else []),
        ]

    def verify_again_writes(self, project_id: str, file_id: str) -> Writes:
        """Returns the writes for the retry of a failed verification.

        They also keep the daily sweep from deleting the object.
        """
        file = self.get(project_id, file_id)
        if file is None or file.state != FAILED:
            return []
        again = replace(file, state=VERIFYING, error=None)
        return [*self.finish_writes(again, was=(FAILED,)), _kept(file, file.file_id)]

    def finish(self, ended: Callable[[], tuple[File, Stored | None]], *, was: Sequence[str], line: AuditLine) -> File:
        """Makes a file ready or failed and records its content, in one transaction. Returns the file.

        `ended` is called before each try and must read the project's content again. WrongState if another caller was
        first, with another result.
        """
        for _ in range(_TRIES):
            file, stored = ended()
            try:
                self._table.transact([*self.finish_writes(file, was=was, stored=stored), audit_write(line)])
            except ConditionFailed as error:
                now = self.get(file.project_id, file.file_id)
                if now is not None and now.state == file.state and now.signature == file.signature:
                    return now
                if 0 in error.failed:
                    raise WrongState(
                        f"another request completed or deleted the file {file.file_id} meanwhile: read the file again"
                    ) from error
                # The content record or the quota has changed: read them again.
            else:
                return file
        raise Busy("too many requests change this content at once: try again in a few seconds")

    def remove(self, file: File, line: AuditLine, now: float) -> str | None:
        """Deletes a file's record. With the last file of a content, also deletes the content's record.

        Returns the key of the content's object if the caller must delete it. None if other files have the content, or
        if the file was not ready. InUse while a Job may need the content.
        """
        record = delete(keys.file(file.project_id, file.file_id), "#state = :state", state=file.state)
        owner = keys.content(file.project_id, file.file_id)
        if file.state != READY or not file.signature:
            self._table.transact([record, delete(owner), audit_write(line)])
            return None
        key = keys.content(file.project_id, file.signature)
        for _ in range(_TRIES):
            content = self._table.get(key, consistent=True)
            if content is None:
                self._table.transact([record, audit_write(line)])
                return None
            if content.get("used_until", 0) > now:
                until = iso(datetime.fromtimestamp(content["used_until"], UTC))
                raise InUse(f"a Job may need the file {file.file_id} until {until}: delete it after that")
            files = content.get("files", 1)
            unused = "attribute_not_exists(#used_until) OR #used_until <= :now"
            if files > 1:
                less = update(key, adds={"files": -1}, condition="#files = :files", files=files)
                writes = [record, less]
                gone = None
            else:
                gone = str(content.get("object") or content_object(file.project_id, file.signature))
                known = "attribute_not_exists(#files) OR #files = :files"
                writes = [record, delete(key, f"({known}) AND ({unused})", files=files, now=int(now))]
                writes.append(stored_bytes_write(file.project_id, -(file.size or 0), None))
                if "object" in content:
                    # The owner record has the name of the object, which may come from another file.
                    writes.append(delete(keys.content(file.project_id, gone.rsplit("/", 1)[-1])))
            try:
                self._table.transact([*writes, audit_write(line)])
            except ConditionFailed as error:
                if 0 in error.failed:
                    raise WrongState(
                        f"the file {file.file_id} was changed or deleted meanwhile: read the file again"
                    ) from error
            else:
                return gone
        raise Busy("too many requests change this content at once: try again in a few seconds")

    def object_of(self, project_id: str, signature: str) -> str:
        """Returns the key of the content's object in the bucket."""
        item = self._table.get(keys.content(project_id, signature), consistent=True) or {}
        return str(item.get("object") or content_object(project_id, signature))

    def _content_writes(self, file: File, stored: Stored | None = None, opened: OpenUpload | None = None) -> Writes:
        """Returns the writes for the content of a file that becomes ready.

        A content counts once towards the project's stored bytes, however many files have it.
        """
        signature = str(file.signature)
        known = self.has_content(file.project_id, signature)
        content = update(
            keys.content(file.project_id, signature),
            {"signature": signature, "size": file.size, "state": READY} | (stored.as_data() if stored else {}),
            adds={"files": 1},
            removes=("bringing", "brought_by"),
            condition="#state = :ready" if known else "attribute_not_exists(#state) OR #state <> :ready",
            ready=READY,
        )
        if known:
            return [content, *([upload_closed_write(file.project_id, opened.size)] if opened else [])]
        announced = opened.size if opened else None
        try:
            return [content, *self._usage.new_content_writes(file.project_id, file.size or 0, announced)]
        except QuotaExceeded:
            if opened and opened.size != file.size:
                self.open_uploads.refuse(opened)
            raise

    def has_content(self, project_id: str, signature: str) -> bool:
        return self.ready_object(project_id, signature) is not None

    def ready_object(self, project_id: str, signature: str) -> str | None:
        """Returns the key of the content's object. None if the project does not have that content."""
        item = self._table.get(keys.content(project_id, signature), consistent=True) or {}
        key = str(item.get("object") or content_object(project_id, signature))
        return key if item.get("state") == READY else None
