"""Types of the dicts that an agent exchanges with the API: transfers, results, goals of releases.

`tidegate_client.models` exports them too, with the records of the API and the bodies that callers send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import NotRequired

# Data that callers store with a batch: any JSON.
Json = Union[dict[str, object], list[object], str, float, bool, None]


class SwarmFigures(TypedDict):
    origin_bytes: int
    peer_bytes: int
    bad_pieces: int
    fell_back: str
    bad_peers: list[str]
    # Bytes copied from an older version of the file; only if the transfer had block hashes.
    reused_bytes: NotRequired[int]


class Presence(TypedDict):
    listen: list[str]
    site: str
    zone: str
    pin: str
    upload_mbit: float | None
    reached: bool


class Transfer(TypedDict):
    transfer_id: str
    container_id: str
    url: str
    expires_at: str
    file_name: str
    target_file_dir: str
    target_user: str
    signature: str
    size: NotRequired[int | None]
    swarm: NotRequired[dict[str, Any] | None]
    job_id: NotRequired[str | None]
    # Increases with every window for one path on one host.
    sequence: NotRequired[int | None]
    # Octal permissions, as in "0640".
    mode: NotRequired[str | None]
    # Bytes a second that this host may use for the Job, beside its own limit.
    limit_rate: NotRequired[int | None]
    # The hosts of a large Job spread their reports over this many seconds.
    spread_s: NotRequired[int | None]
    # When to put the file in place, when the Job ends, and when the agent reported the file as staged.
    activate_at: NotRequired[str | None]
    # The release that the content is for: the host keeps it in a hidden file until the release is switched.
    release: NotRequired[str | None]
    # Also replace a file that a release manages.
    force: NotRequired[bool | None]
    activate_until: NotRequired[str | None]
    staged_at: NotRequired[str | None]


class TransferResult(TypedDict):
    transfer_id: str
    container_id: str
    error_code: int
    error_msg: NotRequired[str]
    progress: NotRequired[int]
    swarm: NotRequired[SwarmFigures]
    # Bytes downloaded, bytes a second, and times by the host's clock.
    size: NotRequired[int]
    speed: NotRequired[int]
    start_time: NotRequired[str]
    end_time: NotRequired[str]
    # With error_code 115: the host has the whole file and waits for `activate_at`.
    staged_at: NotRequired[str]
