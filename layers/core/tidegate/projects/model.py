"""Projects (the tenants) and their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

from tidegate.records import F

# Requests per second of one host's key. A busy host sends a few; one whose key was stolen must not use up the API.
AGENT_RATE = 20.0
# A request counts once more for each of these that it uses, parts of them added up: bytes of its answer, which leaves
# AWS; read units of DynamoDB (a host's request needs fewer); seconds of a function. As many read units also count as a
# second of a runner.
ANSWER_BYTES = 32 * 1024
READ_UNITS, AGENT_READ_UNITS = 100, 10
# Write units beyond those of a usual request, such as for a large record. One costs as much as five read units.
USUAL_WRITE_UNITS, WRITE_UNITS, AGENT_WRITE_UNITS = 40, 20, 10
REQUEST_SECONDS = 1.0
# A project with the default rate may save up the requests of so many seconds: enough to load the console, or to submit
# a few hundred targets one by one.
DEFAULT_BURST_SECONDS = 60.0


def _limit(description: str, most: int, least: int = 0) -> F:
    return F(description, ge=least, le=most, changes=True)


@dataclass(frozen=True, slots=True)
class Quotas:
    """A project's limits. `share`: the slots of each channel that the project may hold, in place of a fair share.

    With the defaults, a key of the project cannot cost more than the sums in `docs/security.md`.
    `tests/bench/ceiling.py` adds up these sums. A limit of None is no limit. Only projects from before limits had
    defaults may have such limits: see `LEGACY`.
    """

    stored_bytes: Annotated[
        int | None,
        _limit(
            "the most bytes in the library and in announced uploads; equal content counts once in the library. An "
            "upload without `size` takes 5 GiB of it, and one in parts as much for each part whose length it does not "
            "name",
            2**53,
        ),
    ] = 10**12
    queued: Annotated[int | None, _limit("the most requests that may wait, over all channels", 10**9)] = 10_000
    running: Annotated[
        int | None,
        F("the most slots that the project may hold in a channel; a batch takes one for each runner", changes=True),
    ] = 100
    requests_per_s: Annotated[
        int | None,
        _limit(
            "requests per second of all keys of the project, except those of hosts; a request counts once more for "
            "each 32 KiB of its answer, a change of a release as ten. With the default, those of a minute can be saved "
            "up",
            10**6,
            least=1,
        ),
    ] = 5
    batch_schedules: Annotated[int | None, _limit("the most recurring batches that the project may have", 10**6)] = 100
    export_schedules: Annotated[int | None, _limit("the most recurring exports that the project may have", 10**6)] = 100
    runner_hours_per_day: Annotated[
        int | None,
        _limit(
            "hours per day (UTC) of functions that work for the project: batches, exports, ingest, samples and sync "
            "exports. Each start of queued work counts as 10 seconds, each Job as about 3 minutes, less if it ends "
            "earlier, each look at a roll-out as about 5 seconds. When they are used up, work waits for the next day",
            10**7,
        ),
    ] = 50
    egress_bytes_per_day: Annotated[
        int | None,
        _limit(
            "bytes per day (UTC) that Jobs may send out of the bucket, counted when they are dispatched: the size for "
            "each host, or about twice for each 50 hosts in a swarm",
            2**53,
        ),
    ] = 45 * 10**9
    targets_per_day: Annotated[
        int | None, _limit("targets of Jobs per day (UTC), counted when they are submitted", 10**12)
    ] = 250_000
    outgoing_calls_per_day: Annotated[
        int | None,
        _limit(
            "calls per day (UTC) to businesses; a call counts once more for each 16 KiB of its body. When they are "
            "used up, batches wait for the next day",
            10**12,
        ),
    ] = 500_000
    subscriptions: Annotated[
        int, _limit("the most subscriptions that the project may have; 1,000 by default", 10**6)
    ] = 1000
    businesses: Annotated[int, _limit("the most businesses that the project may register; 1,000 by default", 10**6)] = (
        1000
    )
    batches: Annotated[
        int, _limit("the most batches that the project may keep, ended ones included; 10,000 by default", 10**6)
    ] = 10_000
    unstarted_batches: Annotated[
        int, _limit("the most batches that the project may have created and not started; 1,000 by default", 10**6)
    ] = 1000
    open_uploads: Annotated[
        int, _limit("the most uploads that the project may have announced and not ended; 1,000 by default", 10**6)
    ] = 1000
    slow_calls: Annotated[
        int,
        _limit(
            "the most open calls that wait for a remote server (sync exports, samples, previews, dry runs); 20 by "
            "default",
            100,
            least=1,
        ),
    ] = 20
    share: Annotated[
        Mapping[str, int] | None,
        F("by channel, the slots that the project may hold while another project waits", changes=True),
    ] = None
    # The limits that an operator set. The others have their defaults, which old projects do not have: see `LEGACY`.
    named: frozenset[str] = frozenset()
    legacy: bool = False

    def changed(self, limits: Mapping[str, Any]) -> Quotas:
        """Returns the quotas with these limits in place of the old ones. A limit of None is set to its default."""
        given = {name: DEFAULTS[name] if limit is None else limit for name, limit in limits.items()}
        # In a project from before defaults, None sets the default, where there was no limit: that counts as set.
        named = {name for name, limit in limits.items() if limit is not None or (self.legacy and name in LEGACY)}
        return replace(self, **given, named=self.named - limits.keys() | named)

    @property
    def at_default(self) -> list[str]:
        """The names of the limits that nobody set, so that they have their defaults."""
        unset = DEFAULTS.keys() - self.named - {"share"}
        return sorted(unset - LEGACY.keys() if self.legacy else unset)

    def set_limits(self) -> dict[str, Any]:
        """Returns the limits that an operator set, by name."""
        return {name: getattr(self, name) for name in sorted(self.named)}


_NOT_LIMITS = ("named", "legacy")
DEFAULTS: Mapping[str, Any] = {limit.name: limit.default for limit in fields(Quotas) if limit.name not in _NOT_LIMITS}
# Projects that were created without these limits have none until an operator sets them.
LEGACY: Mapping[str, None] = dict.fromkeys(
    (
        "stored_bytes",
        "queued",
        "running",
        "requests_per_s",
        "batch_schedules",
        "export_schedules",
        "runner_hours_per_day",
        "egress_bytes_per_day",
        "targets_per_day",
        "outgoing_calls_per_day",
    )
)


def path_parts(path: str) -> tuple[str, ...] | None:
    """Returns the parts of an absolute path, to compare two paths.

    None if the path is not absolute, or if its meaning depends on the host. A host may run Windows, where a backslash
    is a separator, `//name` is a server, and `.. ` means `..`.
    """
    is_windows = path[1:3] in (":/", ":\\") and path[0].isascii() and path[0].isalpha()
    if is_windows:
        root, rest = f"{path[0].upper()}:", path[3:].replace("\\", "/")
    elif path.startswith("/") and not path.startswith("//") and "\\" not in path:
        root, rest = "/", path[1:]
    else:
        return None
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if any(not part.strip(". ") for part in parts) or any(ord(char) < 32 for char in rest):
        return None
    return (root, *parts)


@dataclass(frozen=True, slots=True)
class GseGrant:
    """Where a project may send files through GSE: nowhere by default, because GSE can write anywhere on any host.

    All comparisons are exact, and letter case counts.
    """

    targets: Annotated[
        tuple[str, ...],
        F(
            "patterns (`*`, `?`, `[…]`, letter case counts) of agent ids, for hosts themselves, or of "
            "`agent_id/container_id`, for containers"
        ),
    ] = ()
    dirs: Annotated[
        tuple[str, ...],
        F(
            "absolute directories; files may go into them and below. Compared part by part, letter case included: "
            "`/data/app` does not cover `/data/application`"
        ),
    ] = ()
    users: Annotated[tuple[str, ...], F("names of users, compared exactly")] = ()

    def has_target(self, agent_id: str, container_id: str) -> bool:
        # A pattern without a slash is for the host alone: its containers may belong to other projects.
        patterns = [pattern.split("/") for pattern in self.targets]
        wanted = [agent_id, container_id] if container_id else [agent_id]
        alike = [pattern for pattern in patterns if len(pattern) == len(wanted)]
        return any(all(map(fnmatchcase, wanted, pattern)) for pattern in alike)

    def has_directory(self, path: str) -> bool:
        wanted = path_parts(path)
        granted = [parts for directory in self.dirs if (parts := path_parts(directory))]
        return wanted is not None and any(wanted[: len(parts)] == parts for parts in granted)


@dataclass(frozen=True, slots=True)
class AwsRole:
    """An AWS role whose instances may enrol as hosts. The name of an instance's session becomes the id of its host.

    The role's name is compared exactly, and without its path, which STS does not tell. The name is unique in an
    account.
    """

    account: Annotated[str, F("number of the AWS account, 12 digits", pattern=r"^[0-9]{12}$")]
    role: Annotated[str, F("name of the role, exact and without its path", pattern=r"^[A-Za-z0-9+=,.@_-]{1,64}$")]
    groups: Annotated[tuple[str, ...], F("groups of the hosts that enrol by this role")] = ()
    labels: Annotated[Mapping[str, str], F("labels of the hosts that enrol by this role")] = field(default_factory=dict)
    replace: Annotated[
        bool, F("whether an instance may enrol again under its id, such as after it lost its disk: the old key ends")
    ] = False


@dataclass(frozen=True, slots=True)
class Project:
    project_id: Annotated[str, F("id of the project")]
    name: Annotated[str, F("a name for people", changes=True)]
    group: Annotated[str | None, F("a label of your choice for projects; it has no effect", changes=True)] = None
    allow_private_urls: Annotated[
        bool, F("whether the project's URLs (sources, callbacks, process_url) may have private addresses", changes=True)
    ] = False
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC")] = ""
    # Newest first. During a rotation there are two secrets, and both sign.
    secret_generations: tuple[int, ...] = ()
    # Stored secrets of projects from before secrets were derived; removed when their next rotation ends.
    callback_secrets: tuple[str, ...] = ()
    quotas: Annotated[
        Quotas,
        F(
            "the limits of the project; only in projects from before quotas had defaults, one may be missing, which "
            "means no limit",
            stored=False,
            changes=True,
        ),
    ] = field(default_factory=Quotas)
    swarm: Annotated[
        str,
        F(
            "`auto`: hosts of a site also send the file to each other, except those in an availability zone of the "
            "bucket's region, which S3 serves for free; `on`: those too; `off`: every host downloads it from S3",
            changes=True,
        ),
    ] = "auto"
    deliver_to: Annotated[
        tuple[str, ...],
        F(
            "where the project's exports may be copied: patterns of `bucket/key`, such as `acme-reports/shop/*`",
            changes=True,
        ),
    ] = ()
    read_from: Annotated[
        tuple[str, ...],
        F(
            "what the project's exports and batches may read directly: `s3://bucket/key*`, `dynamodb://table`, "
            "`athena://workgroup/database`, or `athena://workgroup` for every database that the stack allows",
            changes=True,
        ),
    ] = ()
    alarms: Annotated[
        tuple[str, ...],
        F(
            "CloudWatch alarms of the operator's account that may stop the project's releases: patterns (`*`, `?`, "
            "`[…]`, letter case counts) of names",
            changes=True,
        ),
    ] = ()
    aws_roles: Annotated[
        tuple[AwsRole, ...],
        F("AWS roles whose instances may enrol as hosts without a token; none until an admin sets it", changes=True),
    ] = ()
    gse: Annotated[
        GseGrant,
        F("where the project may send files with `TransferEngine=gse`; nowhere until an admin sets it", changes=True),
    ] = GseGrant()
    masks: Annotated[
        Mapping[str, Any],
        F(
            "columns that exports hide, by name: `phone`, `id`, `card`, `email`, or how many characters stay visible "
            "at the start and the end; a key of scope `unmask` lifts them. A change replaces all",
            changes=True,
        ),
    ] = field(default_factory=dict)
    shared_signatures: Annotated[
        bool,
        F(
            "whether requests are also signed with the secret that all receivers share; off: only with the secret of "
            "the receiver's origin",
            changes=True,
        ),
    ] = True
    # Increases with every change that an operator makes.
    revision: int = 0

    def aws_role(self, account: str, role: str) -> AwsRole | None:
        return next((each for each in self.aws_roles if (each.account, each.role) == (account, role)), None)

    def has_alarm(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.alarms)
