"""Subscriptions as records, and the lists of files that their sources publish."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Store, Write, check, delete, noted, put_new, update
from tidegate.common.ids import digest
from tidegate.common.json_input import whole_number
from tidegate.common.sequences import Listed
from tidegate.errors import FetchError, QuotaExceeded, SourceBroken
from tidegate.http.client import SafeHttp
from tidegate.http.guard import Credential
from tidegate.http.model import Limits, Reply
from tidegate.ingest.feeds import MAX_BYTES, MAX_ENTRIES, Entry, Listing, chosen, template_fault, unique
from tidegate.ingest.model import total_of
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.projects.limits import count_write
from tidegate.projects.secrets import CREDENTIAL_NAME
from tidegate.queue.schedules import Schedule, changes, stored, unchanged
from tidegate.records import F, Number, Priority, Text, record_from

# --- source list
# Reads a source's list of files, page by page.

# Ten thousand files are ten pages of an S3 listing, or a few dozen sitemaps.
MAX_PAGES = 50
# Limits of a directory index that is read with all folders below it.
MAX_FOLDERS, MAX_DEPTH = 500, 16
LIMITS = Limits(total=120, max_bytes=MAX_BYTES)


def _valid_template(value: str) -> str:
    if fault := template_fault(value):
        raise ValueError(fault)
    return value


SourceUrl = Annotated[str, F("URL of the page, feed or manifest that lists files", min_length=1, max_length=4096)]
Format = Annotated[
    Literal["auto", "json", "html", "rss", "atom", "s3", "sums", "sitemap"],
    F("how the source lists its files; `auto` detects it from the answer", changes=True),
]
Glob = Annotated[str, F(min_length=1, max_length=300)]
Globs = Annotated[
    tuple[Glob, ...],
    F("globs such as `*.iso`; one with a slash is matched against the whole path", max_length=50, changes=True),
]
FilePath = Annotated[
    str | None,
    F(
        "the path of each file in the library, such as `/podcasts/{year}/{name}`; default: its path in the source",
        max_length=500,
        check=_valid_template,
        changes=True,
    ),
]


Compare = Annotated[
    Literal["auto", "head"],
    F(
        "how changed files are noticed: `auto` compares what the list shows, and asks the server (HEAD) about files "
        "that are listed without date and size; `head` asks about all files",
        changes=True,
    ),
]


Recursive = Annotated[bool, F("also read the folders below a directory index, at most 16 deep", changes=True)]
OnDelete = Annotated[
    Literal["keep", "trash"],
    F(
        "what happens to files that the source no longer lists: `keep`, or `trash`: they are deleted from the library "
        "after seven days, unless they are listed again",
        changes=True,
    ),
]


@dataclass(frozen=True, slots=True)
class Selection:
    """How a source is read, which of its files are chosen, and which paths they get in the library."""

    format: Format = "auto"
    include: Globs = ()
    exclude: Globs = ()
    file_path: FilePath = None
    recursive: Recursive = False


# How many entries that cannot be read are named in the result; all are counted.
_SKIPPED_NAMED = 10


@dataclass(frozen=True, slots=True)
class SourceList:
    """The files that a source lists, and which of them are chosen.

    `entries` is None if the source answered 304. `etag` is None for lists of several pages.
    """

    entries: list[Entry] | None
    format: str = ""
    listed: int = 0
    etag: str | None = None
    # Why entries of the list were left out, one text for each.
    skipped: tuple[str, ...] = ()
    # All URLs that it lists, chosen or not. `complete`: no folder failed to be read, so none is missing.
    urls: frozenset[str] = frozenset()
    complete: bool = True
    # How many entries cannot be read: their URLs are not in `urls`.
    unreadable: int = 0
    # The folders of the list that the subscription does not read.
    unread: tuple[str, ...] = ()

    @property
    def first_skipped(self) -> list[str]:
        return list(self.skipped[:_SKIPPED_NAMED])


def read_source(
    http: SafeHttp,
    project_id: str,
    url: str,
    selection: Selection,
    *,
    etag: str | None = None,
    credential: Credential | None = None,
    allow_private: bool = False,
    limits: Limits = LIMITS,
    on_page: Callable[[], None] = lambda: None,
) -> SourceList:
    """Returns the files that the source lists on all its pages. `entries` has those that the selection chooses."""
    # Imported here: the parsers take 17 ms, and the API needs them only for a preview.
    from tidegate.ingest.feeds import listing_of

    def get(page: str, headers: Mapping[str, str]) -> Reply:
        reply = http.send(
            "GET",
            page,
            headers=headers,
            credential=credential,
            allow_private=allow_private,
            limits=limits,
            project_id=project_id,
        )
        reply.raise_for_status()
        on_page()
        return reply

    first = get(url, {"if-none-match": etag} if etag else {})
    if first.status == 304:
        return SourceList(None, etag=etag)
    listing = listing_of(first.body, first.headers.get("content-type", ""), first.url, selection.format)
    entries, to_read, seen = list(listing.entries), deque(listing.more), {url, first.url}
    skipped = [*listing.skipped]
    while to_read:
        page = to_read.popleft()
        if page in seen:
            continue
        seen.add(page)
        if len(seen) > MAX_PAGES + 2 or len(entries) > MAX_ENTRIES:
            raise SourceBroken(f"the source has more than {MAX_PAGES} pages or {MAX_ENTRIES} files: split it")
        reply = get(page, {})
        more = listing_of(reply.body, reply.headers.get("content-type", ""), reply.url, listing.format)
        entries += more.entries
        skipped += more.skipped
        to_read += more.more
    complete, unreadable = True, len(skipped)
    if selection.recursive and listing.folders:
        tree = _Tree(get, first.url)
        entries += tree.read(listing)
        skipped += tree.skipped
        complete = tree.complete
        unreadable += tree.unreadable
    found = unique(entries)
    taken = chosen(found, selection.include, selection.exclude, selection.file_path)
    return SourceList(
        taken,
        listing.format,
        len(found),
        # With several pages, one may be unchanged although another has changed.
        None if listing.more or (selection.recursive and listing.folders) else first.headers.get("etag") or None,
        tuple(skipped),
        frozenset(entry.url for entry in found),
        complete,
        unreadable,
        () if selection.recursive else tuple(listing.folders),
    )


class _Tree:
    """Reads the folders below a directory index, at any depth."""

    def __init__(self, get: Callable[[str, Mapping[str, str]], Reply], root: str) -> None:
        self._get = get
        self._root = root.partition("?")[0].rsplit("/", 1)[0] + "/"
        self.skipped: list[str] = []
        self.unreadable = 0
        self.complete = True

    def read(self, index: Listing) -> list[Entry]:
        """Returns the entries of all folders. SourceBroken if there are too many folders or files."""
        from tidegate.ingest.feeds import listing_of

        entries: list[Entry] = []
        # Each folder with digests of what the folders above it list.
        top: tuple[str, ...] = (_content(index, self._root),)
        to_read = deque((url, top) for url in index.folders)
        seen = {self._root}
        while to_read:
            url, above = to_read.popleft()
            if url in seen:
                continue
            seen.add(url)
            if len(seen) > MAX_FOLDERS or len(entries) > MAX_ENTRIES:
                raise SourceBroken(f"the source has more than {MAX_FOLDERS} folders or {MAX_ENTRIES} files: split it")
            if len(above) > MAX_DEPTH:
                self._leave_out(url, f"it is more than {MAX_DEPTH} folders deep")
                continue
            try:
                reply = self._get(url, {})
            except FetchError as error:
                if error.retryable:
                    raise
                self._leave_out(url, error.detail)
                continue
            if not reply.url.startswith(self._root):
                self._leave_out(url, "it leads to another place")
                continue
            listing = listing_of(reply.body, reply.headers.get("content-type", ""), reply.url, "html")
            content = _content(listing, reply.url)
            # A link to a folder above lists the same again. A folder without files may look the same by chance, once.
            if above.count(content) > (0 if listing.entries else 1):
                self.skipped.append(f"the folder {url} is left out: it lists the same as one above it, so it is a loop")
                continue
            entries += listing.entries
            self.skipped += listing.skipped
            self.unreadable += len(listing.skipped)
            to_read += ((folder, (*above, content)) for folder in listing.folders)
        return entries

    def _leave_out(self, url: str, why: str) -> None:
        self.skipped.append(f"the folder {url} is left out: {why}")
        self.complete = False


def _content(listing: Listing, base: str) -> str:
    """Returns a digest of what a folder lists: the names of its files and folders, and what is shown of each file."""
    folder = base.partition("?")[0].rsplit("/", 1)[0] + "/"
    files = sorted(f"{entry.url.removeprefix(folder)} {entry.fingerprint}" for entry in listing.entries)
    return digest(*files, "", *sorted(url.removeprefix(folder) for url in listing.folders), length=32)


# A paused subscription is not scanned by its schedule, but can be scanned by hand.
DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(Schedule):
    subscription_id: Annotated[str, F("id of the subscription")]
    name: Annotated[Text, F("a name for people", changes=True)]
    source_url: Annotated[SourceUrl, F("URL of the page, feed or manifest that lists files", changes=True)]
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC", shown="create_time")]
    biz_id: Annotated[Number, F("biz_id of its files", changes=True)] = 0
    app_id: Annotated[Number, F("app_id of its files", changes=True)] = 0
    credentials: Annotated[
        str | None, F("name of the stored credential for the source", pattern=CREDENTIAL_NAME, changes=True)
    ] = None
    format: Format = "auto"
    include: Globs = ()
    exclude: Globs = ()
    file_path: FilePath = None
    compare: Compare = "auto"
    recursive: Recursive = False
    on_delete: OnDelete = "keep"
    politeness: Annotated[dict[str, int | float] | None, F("limits for fetching its files", changes=True)] = None
    concurrency: Annotated[
        int, F("how many of its downloads run in parallel; a change affects new ones only", ge=1, le=16, changes=True)
    ] = 1
    # None counts as 5.
    priority: Annotated[Priority | None, F("priority of its scheduled scans and their downloads", changes=True)] = None
    etag: str | None = None
    last_scan: Annotated[str | None, F("when the source was read last, ISO 8601 UTC")] = None
    # The scan of the last run.
    last_request_id: str | None = None
    # How many of its downloads have failed, in total and at the time `etag` was stored.
    failures: int = 0
    etag_failures: int = 0
    # How often it was scanned: an entry whose download failed is put off for some scans.
    scans: int = 0

    @property
    def known_etag(self) -> str | None:
        """The ETag to send with the next scan; None: send none.

        After a failed download no ETag is sent. With one, the source may answer 304, and the scan would not see the
        entry.
        """
        return self.etag if self.failures == self.etag_failures else None

    @property
    def selection(self) -> Selection:
        return Selection(self.format, self.include, self.exclude, self.file_path, self.recursive)


# Retry-After of a full quota: people delete subscriptions, which takes longer than seconds.
_QUOTA_RETRY_SECONDS = 3600


class FileVersion(NamedTuple):
    """What a server's headers say of a file. A field is None if the headers do not have it."""

    etag: str | None = None
    length: int | None = None
    modified: str | None = None

    def differs(self, other: FileVersion) -> bool | None:
        """Whether the other version differs; None if they have no header in common.

        The date counts only if one of them has no ETag. Several servers of one file may have stored it at different
        times.
        """
        names = ("etag", "length") if self.etag and other.etag else self._fields
        both = ((getattr(self, name), getattr(other, name)) for name in names)
        pairs = [(a, b) for a, b in both if a is not None and b is not None]
        return any(a != b for a, b in pairs) if pairs else None

    def known(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


NO_VERSION = FileVersion()


def version_of(headers: Mapping[str, str]) -> FileVersion:
    """Returns the version from the headers of an answer to HEAD, or to a GET of some bytes."""
    etag = headers.get("etag", "").removeprefix("W/") or None
    partial = "content-range" in headers
    length = total_of(headers) if partial else whole_number(headers.get("content-length", ""))
    # The length of a packed answer is not that of the file.
    packed = headers.get("content-encoding", "identity") != "identity"
    return FileVersion(etag, None if packed else length, headers.get("last-modified") or None)


class SeenEntry(NamedTuple):
    """What is stored of an entry of a list. `fingerprint`: the one with which the entry was queued last.

    After a failed download: `failed` is the fingerprint that failed, and `failures` says how often. Scans do not queue
    it again before the scan with the number `again`.
    """

    fingerprint: str
    failed: str | None = None
    failures: int = 0
    again: int = 0
    # The fingerprint in the list, if `fingerprint` contains what the server said of the file.
    listed: str | None = None
    # What the server said of the file when it was downloaded or last compared, and the scan that compared it.
    version: FileVersion = NO_VERSION
    compared: int = 0
    # Its path in the library; and the time, in Unix seconds, since which the source no longer lists it.
    path: str | None = None
    gone_at: int = 0
    # The ids with which it was fetched: those of the subscription may have changed since. None: by an older version.
    biz_id: int | None = None
    app_id: int | None = None

    def is_queued(self, entry: Entry) -> bool:
        """Whether this version of the entry was queued and has not failed, as far as the list shows versions."""
        return bool(self.fingerprint) and entry.fingerprint in (self.fingerprint, self.listed)

    def puts_off(self, entry: Entry, scan: int) -> bool:
        """Whether this version of the entry has failed, and only a scan after `scan` will queue it again."""
        return not self.fingerprint and entry.fingerprint in (self.failed, self.listed) and scan < self.again


_SEEN_ATTRIBUTES = (*(name for name in SeenEntry._fields if name != "version"), *FileVersion._fields)

# In the class below, `list` is a method.
Writes = list[Write]


_FAILURE = ("failed", "failures", "again")
# The wait of an entry that fails again and again stops doubling at 256 scans.
_MOST_DOUBLED = 8


def _seen(item: Mapping[str, Any]) -> SeenEntry:
    count, again, compared = (int(item.get(name, 0)) for name in ("failures", "again", "compared"))
    length = item.get("length")
    version = FileVersion(item.get("etag"), None if length is None else int(length), item.get("modified"))
    fingerprint, failed, listed = str(item.get("fingerprint", "")), item.get("failed"), item.get("listed")
    gone_at = int(item.get("gone_at", 0))
    place = item.get("path"), gone_at, item.get("biz_id"), item.get("app_id")
    return SeenEntry(fingerprint, failed, count, again, listed, version, compared, *place)


class SubscriptionStore(Store):
    """Stores subscriptions, and what is known of the entries of their lists."""

    def add(self, subscription: Subscription, line: AuditLine, limit: int) -> None:
        """Stores a new subscription. QuotaExceeded if the project has `limit` subscriptions already."""
        item = stored(subscription, subscription.subscription_id, keys.SUBSCRIPTIONS)
        counted = count_write(subscription.project_id, "subscriptions", 1, limit)
        try:
            note = noted(subscription_id=subscription.subscription_id)
            self._table.transact([put_new(item), counted, audit_write(line), *note])
        except ConditionFailed as error:
            if 1 not in error.failed:
                raise
            raise QuotaExceeded.for_limit("subscriptions", limit, _QUOTA_RETRY_SECONDS) from error

    def get(self, project_id: str, subscription_id: str) -> Subscription | None:
        item = self._table.get(keys.subscription(project_id, subscription_id), consistent=True)
        return record_from(Subscription, item) if item else None

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Subscription]:
        page = self._table.find(keys.SUBSCRIPTIONS.list(project_id), limit=limit, cursor=cursor, wanted={})
        found = [record_from(Subscription, item) for item in page.items]
        return Listed([one for one in found if one.status != DELETING], page.cursor)

    def change(self, old: Subscription, new: Subscription, line: AuditLine, *, read_again: bool) -> bool:
        """Stores a changed subscription. False if it was changed or deleted meanwhile.

        `read_again`: the next scan sends no ETag.
        """
        sets, gone = changes(old, new, keys.SUBSCRIPTIONS)
        same, values = unchanged(old)
        write = update(
            keys.subscription(old.project_id, old.subscription_id),
            sets,
            adds={"failures": 1} if read_again else None,
            removes=gone,
            condition=f"#status = :was AND {same}",
            was=old.status,
            **values,
        )
        return self._table.try_write(write, audit_write(line))

    def scanned_write(self, subscription: Subscription, etag: str | None, at: str) -> Write:
        key = keys.subscription(subscription.project_id, subscription.subscription_id)
        sets = {"etag": etag, "etag_failures": subscription.failures, "last_scan": at, "scans": subscription.scans + 1}
        return update(key, sets, removes=() if etag else ("etag",))

    def seen(self, project_id: str, subscription_id: str) -> dict[str, SeenEntry]:
        """Returns what is known of each entry of a subscription's list, by URL."""
        pk, wanted = keys.manifest_entries(project_id, subscription_id), ("url", *_SEEN_ATTRIBUTES)
        items = self._table.query_all(pk, consistent=True, project=wanted)
        return {item["url"]: _seen(item) for item in items}

    def mark_gone(self, subscription: Subscription, url: str, at: int | None) -> None:
        """Stores since when the source no longer lists an entry. `at` is None if the source lists the entry again."""
        key = keys.manifest_entry(subscription.project_id, subscription.subscription_id, url)
        sets = None if at is None else {"gone_at": at}
        self._table.try_write(update(key, sets, removes=("gone_at",) if at is None else ()))

    def drop_gone(self, subscription: Subscription, url: str, gone_at: int) -> None:
        """Deletes what is known of an entry whose files were deleted.

        Does nothing if a scan has found the entry in the list again meanwhile.
        """
        key = keys.manifest_entry(subscription.project_id, subscription.subscription_id, url)
        self._table.try_write(delete(key, "#gone_at = :seen", seen=gone_at))

    def compared(self, subscription: Subscription, url: str, version: FileVersion, scan: int) -> None:
        """Stores what the server said of a file that has not changed. `scan`: the scan that asked the server."""
        key = keys.manifest_entry(subscription.project_id, subscription.subscription_id, url)
        self._table.try_write(update(key, version.known() | {"compared": scan}))

    def fetched(self, project_id: str, subscription_id: str, url: str, fingerprint: str, version: FileVersion) -> None:
        """Stores what the server said of a downloaded file, unless a later version of it was queued."""
        key = keys.manifest_entry(project_id, subscription_id, url)
        gone = [name for name in FileVersion._fields if name not in version.known()]
        same = "#fingerprint = :mine"
        self._table.try_write(update(key, version.known(), removes=gone, condition=same, mine=fingerprint))

    def seen_writes(self, subscription: Subscription, entry: Entry, listed: str | None = None) -> Writes:
        """Returns the writes that mark an entry as queued, for the transaction that queues its download.

        They fail if the subscription was deleted. `listed`: the fingerprint in the list, if that is not the entry's
        own.
        """
        project_id, subscription_id = subscription.project_id, subscription.subscription_id
        known = keys.manifest_entry(project_id, subscription_id, entry.url)
        return [
            # Earlier failures stay stored: they count if the download fails again.
            update(
                known,
                {"url": entry.url, "fingerprint": entry.fingerprint, "listed": listed}
                | {"path": entry.path, "biz_id": subscription.biz_id, "app_id": subscription.app_id},
                removes=("gone_at",) if listed else ("listed", "gone_at"),
                condition="attribute_not_exists(#pk) OR #fingerprint <> :new",
                new=entry.fingerprint,
            ),
            # `<>` is true of an attribute that is missing, so a deleted record must be refused by its own clause.
            check(
                keys.subscription(project_id, subscription_id),
                "attribute_exists(#pk) AND #status <> :deleting",
                deleting=DELETING,
            ),
        ]

    def forget_writes(
        self, project_id: str, subscription_id: str, url: str, fingerprint: str | None, *, failed: bool
    ) -> Writes:
        """Returns the writes after which the next scan sends no ETag and queues an entry again.

        If the entry's download `failed`, scans by schedule queue it again only after 1, 2, 4 … scans, because the link
        may be dead. Returns no writes if another download of the URL was queued since.
        """
        subscription = self.get(project_id, subscription_id)
        if subscription is None or subscription.status == DELETING:
            return []
        key = keys.manifest_entry(project_id, subscription_id, url)
        counted = update(keys.subscription(project_id, subscription_id), adds={"failures": 1})
        known, same = _seen(self._table.get(key, consistent=True) or {}), "#fingerprint = :mine"
        if not fingerprint:
            return [delete(key), counted]
        if known.fingerprint != fingerprint:
            return []
        sets: dict[str, Any] = {"fingerprint": ""}
        if failed:
            times = 1 + (known.failures if known.failed == fingerprint else 0)
            again = subscription.scans + 2 ** min(times - 1, _MOST_DOUBLED)
            sets |= {"failed": fingerprint, "failures": times, "again": again}
        removes = () if failed else _FAILURE
        return [update(key, sets, removes=removes, condition=same, mine=fingerprint), counted]

    def remember_writes(self, project_id: str, subscription_id: str, url: str, fingerprint: str) -> Writes:
        """Returns the writes for the retry of a failed download. Its entry counts as queued, so no scan queues it."""
        key = keys.manifest_entry(project_id, subscription_id, url)
        if _seen(self._table.get(key, consistent=True) or {}).failed != fingerprint:
            return []
        same = "#failed = :mine"
        return [update(key, {"fingerprint": fingerprint}, removes=_FAILURE, condition=same, mine=fingerprint)]

    def begin_delete(self, project_id: str, subscription_id: str, now: float, line: AuditLine) -> bool:
        """Marks a subscription as being deleted and as due. Compensation continues until its records are deleted."""
        due = keys.due(subscription_id, now, "subscription")
        key = keys.subscription(project_id, subscription_id)
        return self._table.try_write(update(key, {"status": DELETING} | due), audit_write(line))

    def delete(self, project_id: str, subscription_id: str) -> None:
        pk = keys.manifest_entries(project_id, subscription_id)
        # Consistent: no later call would delete an entry that was written just now and is not seen.
        entries = self._table.query_all(pk, consistent=True, project=("pk", "sk"))
        self._table.batch_delete({"pk": item["pk"], "sk": item["sk"]} for item in entries)
        found = self.get(project_id, subscription_id)
        counted = [count_write(project_id, "subscriptions", -1)] if found and found.counted else []
        # Conditional, because two functions may delete it at once and it is counted once.
        self._table.try_write(delete(keys.subscription(project_id, subscription_id), "attribute_exists(#pk)"), *counted)
