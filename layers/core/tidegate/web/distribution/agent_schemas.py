"""Bodies and answers of the routes that agents call."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from tidegate.web.distribution.task_schemas import AgentId, ContainerId
from tidegate.web.schemas import Answer, Body

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$")]


class PeerAnswer(Answer):
    id: str
    at: list[str]
    pin: str
    token: str
    near: bool


class SwarmAnswer(Answer):
    """The host's place in the swarm of its Job, and the peers that it may ask for pieces."""

    id: str
    number: int
    members: int
    seed: int
    ranks: int
    hold: float
    patience: float
    age: float
    lasts: float
    piece_size: int
    pieces_sha256: str
    pieces_url: str
    blocks_sha256: str | None = None
    blocks_url: str | None = None
    accept: str
    peers: list[PeerAnswer]


class TransferAnswer(Answer):
    transfer_id: str
    container_id: str
    url: str
    expires_at: str
    file_name: str
    target_file_dir: str
    target_user: str
    signature: str
    size: int
    job_id: str | None = None
    sequence: int | None = None
    mode: str | None = None
    swarm: SwarmAnswer | None = None
    limit_rate: (
        Annotated[int, Field(description="bytes per second, over all transfers of this Job on the host")] | None
    ) = None
    activate_at: (
        Annotated[str, Field(description="download the file now, and put it in place at this time by the host's clock")]
        | None
    ) = None
    activate_until: (
        Annotated[str, Field(description="the end of the Job; do not put the file in place after it")] | None
    ) = None
    staged_at: (
        Annotated[str, Field(description="when the host reported that it has the whole file; absent before that")]
        | None
    ) = None
    spread_s: (
        Annotated[
            int,
            Field(description="wait a random time up to this many seconds before reporting: the Job has many hosts"),
        ]
        | None
    ) = None


class TransferList(Answer):
    items: list[TransferAnswer]


class SwarmResult(Body):
    """Where the bytes of a transfer came from."""

    origin_bytes: Annotated[StrictInt, Field(ge=0, le=2**50)]
    peer_bytes: Annotated[StrictInt, Field(ge=0, le=2**50)]
    bad_pieces: Annotated[StrictInt, Field(ge=0, le=2**31)] = 0
    fell_back: Literal["none", "ladder", "alone", "deadline", "no_peers", "bad_pieces", "broken"] = "none"
    bad_peers: Annotated[list[AgentId], Field(max_length=4)] = []
    reused_bytes: Annotated[StrictInt, Field(ge=0, le=2**50)] = 0


class ResultBody(Body):
    transfer_id: Annotated[str, Field(min_length=1, max_length=200)]
    container_id: ContainerId = ""
    error_code: Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)]
    error_msg: Annotated[str, Field(max_length=2000)] | None = None
    progress: Annotated[int, Field(ge=0, le=100)] | None = None
    size: Annotated[StrictInt, Field(ge=0, le=2**53, description="bytes downloaded by this transfer")] | None = None
    speed: Annotated[StrictInt, Field(ge=0, le=2**53, description="bytes per second")] | None = None
    start_time: Moment | None = None
    end_time: Moment | None = None
    staged_at: (
        Annotated[
            Moment,
            Field(description="with error_code 115: since when the host has the whole file and waits for activate_at"),
        ]
        | None
    ) = None
    swarm: SwarmResult | None = None


class ResultsBody(Body):
    items: Annotated[list[ResultBody], Field(min_length=1, max_length=500)]


class TakenAnswer(Answer):
    taken: int


class PresenceBody(Body):
    """Where an agent is, and at which addresses peers can reach it. Without `listen` it only downloads from peers."""

    listen: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=4)] = []
    site: Annotated[str, Field(max_length=64, description="the data centre; a swarm stays within one site")] = ""
    zone: Annotated[
        str, Field(max_length=64, description="rack or availability zone; peers of the same zone are preferred")
    ] = ""
    pin: Annotated[
        str,
        Field(
            pattern=r"^([A-Za-z0-9_-]{43})?$",
            description="SHA-256 of the agent's TLS certificate, base64url; required with `listen`",
        ),
    ] = ""
    upload_mbit: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    reached: bool = True


class PresenceAnswer(Answer):
    expires_at: str
