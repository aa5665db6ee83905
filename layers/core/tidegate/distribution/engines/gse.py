"""BlueKing GSE over HTTP: the source host has the file and GSE brings it from there to the targets, peer to peer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from tidegate.common.ids import Clock, iso
from tidegate.distribution.fleet.inbox import InboxEntry, staging_id
from tidegate.distribution.fleet.wakeups import Wakeups
from tidegate.distribution.model import Job
from tidegate.distribution.ports import Results
from tidegate.distribution.store.agent_inbox import AgentInboxStore
from tidegate.distribution.targets import DONE, IN_PROGRESS, Figures, Shard, Target, TargetReport
from tidegate.distribution.transfers import Transfer
from tidegate.errors import AnswerLost, FetchError, NotAccepted, NotSent, SourceBroken, TransferRefused, UrlNotAllowed
from tidegate.http.client import SafeHttp
from tidegate.http.model import MEGABYTE, Limits, Reply

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

    from tidegate.settings import Settings

_LIMITS = Limits(connect=5, read=25, total=30, max_bytes=64 * MEGABYTE)
_PATH = "/api/v2/task/extensions/"
# How long a file counts as present on the source host after it was fetched.
_STAGED_SECONDS = 6 * 3600
_FAR_FUTURE = 2**35
# A gateway's word that its backend did not answer: the transfer may have been made.
_LOST_BEHIND_A_GATEWAY = frozenset({502, 504})

Credentials = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class GseConfig:
    base_url: str
    tenant_id: str
    source: Target
    source_user: str
    store_dir: str
    # MB a second, 0 for no limit.
    upload_speed: int = 0
    download_speed: int = 0


def gse_engine(
    settings: Settings,
    http: SafeHttp,
    secretsmanager: SecretsManagerClient,
    inbox: AgentInboxStore,
    wakeups: Wakeups,
    clock: Clock,
) -> GseEngine:
    config = GseConfig(
        settings.gse_base_url,
        settings.gse_tenant_id,
        Target(settings.gse_source_agent_id, settings.gse_source_container_id),
        settings.gse_source_user,
        settings.gse_store_dir,
        settings.gse_upload_speed,
        settings.gse_download_speed,
    )

    @cache
    def credentials() -> Mapping[str, str]:
        stored = secretsmanager.get_secret_value(SecretId=settings.gse_credentials_id)
        secret: dict[str, str] = json.loads(stored["SecretString"])
        return secret

    return GseEngine(http, config, credentials, inbox, wakeups, clock)


class GseEngine:
    repeatable = False

    def __init__(
        self,
        http: SafeHttp,
        config: GseConfig,
        credentials: Credentials,
        inbox: AgentInboxStore,
        wakeups: Wakeups,
        clock: Clock,
    ) -> None:
        self._http = http
        self._config = config
        self._credentials = credentials
        self._inbox = inbox
        self._wakeups = wakeups
        self._clock = clock

    def stage(self, job: Job, size: int) -> TargetReport:
        """The source host's own agent fetches the file, once for all Jobs that deliver it."""
        entry = self._inbox.stage(self._staging(job, size))
        if entry.until <= self._clock().timestamp():
            self._inbox.forget_staging(entry, staged_before=self._clock().timestamp())
            entry = self._inbox.stage(self._staging(job, size))
        if entry.state.code is None:
            self._wakeups.send(job.project_id, [self._config.source.agent_id], 0, directly=True)
        if entry.state.ended and not entry.state.succeeded:
            self._inbox.forget_staging(entry, staged_before=entry.until)
        return TargetReport(IN_PROGRESS if entry.state.code is None else entry.state.code, entry.state.message)

    def _staging(self, job: Job, size: int) -> InboxEntry:
        return InboxEntry(
            project_id=job.project_id,
            transfer_id=staging_id(job.parcel.file_signature),
            target=self._config.source,
            file_name=job.parcel.file_signature,
            target_file_dir=self._config.store_dir,
            target_user=self._config.source_user,
            signature=job.parcel.file_signature,
            size=size,
            until=self._clock().timestamp() + _STAGED_SECONDS,
        )

    def create(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> str:
        parcel = job.parcel
        if parcel.mode:
            raise TransferRefused(f"GSE cannot set the mode {parcel.mode} of a file: submit without `mode`")
        if parcel.activate_at:
            raise TransferRefused("GSE cannot hold a file back until a named time: submit without `activate_at`")
        source = _agent(self._config.source) | {"user": self._config.source_user}
        targets = [_agent(target) | {"user": parcel.target_user} for shard in shards for target in shard.states]
        left = (job.deadline or 0) - self._clock().timestamp()
        body = {
            "timeout_seconds": max(1, int(left)),
            "auto_mkdir": True,
            "upload_speed": self._config.upload_speed,
            "download_speed": _megabytes(parcel.limit_rate, self._config.download_speed),
            "tasks": [
                {
                    "source": {
                        "file_name": parcel.file_signature,
                        "store_dir": self._config.store_dir,
                        "agent": source,
                    },
                    "target": {"file_name": parcel.file_name, "store_dir": parcel.target_file_dir, "agents": targets},
                }
            ],
        }
        answer = _answer(self._ask(body))
        if answer.get("code") != 0:
            raise TransferRefused(f"GSE answered {answer.get('code')}: {str(answer.get('message', ''))[:200]}")
        try:
            return str(answer["data"]["result"]["task_id"])
        except (KeyError, TypeError) as error:
            raise AnswerLost("GSE accepted the transfer and did not name it") from error

    def _ask(self, body: Mapping[str, Any]) -> Reply:
        """Tells apart what was surely not taken, what was refused, and what may have been taken."""
        try:
            reply = self._post("async_transfer_file", body)
        except UrlNotAllowed as error:
            raise NotAccepted(error.detail) from error
        except NotSent as error:
            raise NotAccepted(error.detail) from error
        except FetchError as error:
            if isinstance(error.__cause__, (NewConnectionError, ConnectTimeoutError)):
                raise NotAccepted(f"GSE could not be reached: {error.detail}") from error
            raise AnswerLost(f"GSE did not answer: {error.detail}") from error
        if reply.status in _LOST_BEHIND_A_GATEWAY:
            raise AnswerLost(f"a gateway before GSE answered {reply.status}")
        if reply.status == 429 or reply.status >= 500:
            raise NotAccepted(f"GSE answered {reply.status}")
        if reply.status >= 300:
            raise TransferRefused(f"GSE answered {reply.status}")
        return reply

    def results(self, job: Job, transfer: Transfer, open_shards: Sequence[int]) -> Results:
        data = self._call("get_transfer_file_result", {"task_id": transfer.transfer_id})
        targets: dict[Target, TargetReport] = {}
        upload: TargetReport | None = None
        for row in _rows(data):
            content = row.get("content") or {}
            report = TargetReport(
                int(row["error_code"]), str(row.get("error_msg") or ""), _progress(content), _figures(content)
            )
            if content.get("type") == "upload":
                upload = report if report.code not in (DONE, IN_PROGRESS) else upload
            else:
                agent, container = content.get("dest_agent_id"), content.get("dest_container_id")
                targets[Target(str(agent or ""), str(container or ""))] = report
        if upload is not None:
            # The source host could not send: perhaps its store was emptied. The next Job has it fetch the file again.
            entry = self._staging(job, 0)
            self._inbox.forget_staging(entry, staged_before=transfer.asked_at + _STAGED_SECONDS)
        return Results(targets, upload)

    def remind(self, job: Job, targets: Sequence[Target]) -> None:
        """GSE reaches its hosts by itself."""

    def terminate(self, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None:
        agents = [_agent(target) for target in targets]
        self._call("async_terminate_transfer_file", {"task_id": transfer.transfer_id, "agents": agents})

    def _call(self, name: str, body: Mapping[str, Any]) -> Any:
        reply = self._post(name, body)
        reply.raise_for_status()
        answer = _answer(reply)
        if answer.get("code") != 0:
            raise SourceBroken(f"GSE answered {answer.get('code')}: {str(answer.get('message', ''))[:200]}")
        return answer.get("data")

    def _post(self, name: str, body: Mapping[str, Any]) -> Reply:
        headers = {
            "content-type": "application/json",
            "x-bkapi-authorization": json.dumps(dict(self._credentials())),
            "x-bk-tenant-id": self._config.tenant_id,
        }
        url = self._config.base_url.rstrip("/") + _PATH + name
        sent = json.dumps(body, ensure_ascii=False).encode()
        # Its address is the operator's own setting, not a caller's.
        return self._http.send("POST", url, headers=headers, body=sent, allow_private=True, limits=_LIMITS, redirects=0)


def _figures(content: Mapping[str, Any]) -> Figures | None:
    """As far as they are numbers."""
    size, speed, start, end = (
        value if isinstance(value := content.get(name), int) and 0 < value < 2**53 else None
        for name in ("size", "speed", "start_time", "end_time")
    )
    found = Figures(size, speed, _moment(start), _moment(end))
    return found if any(value is not None for value in found) else None


def _moment(at: int | None) -> str | None:
    """Seconds since 1970, or milliseconds where the number is too large for seconds."""
    if at is None or at >= 1000 * _FAR_FUTURE:
        return None
    return iso(datetime.fromtimestamp(at if at < _FAR_FUTURE else at / 1000, UTC))


def _megabytes(limit_rate: int | None, configured: int) -> int:
    """GSE counts whole megabytes a second, and takes 0 for no limit."""
    if limit_rate is None:
        return configured
    wanted = max(1, limit_rate // MEGABYTE)
    return min(wanted, configured) if configured else wanted


def _agent(target: Target) -> dict[str, str]:
    return {"bk_agent_id": target.agent_id, "bk_container_id": target.container_id}


def _answer(reply: Reply) -> dict[str, Any]:
    try:
        answer = reply.json()
    except ValueError as error:
        raise AnswerLost("GSE's answer is not JSON") from error
    if not isinstance(answer, dict):
        raise AnswerLost("GSE's answer is not an object")
    return answer


def _rows(data: Any) -> Iterable[dict[str, Any]]:
    rows = data.get("result") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise SourceBroken("GSE's results are not a list")
    return [row for row in rows if isinstance(row, dict) and _is_number(row.get("error_code"))]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def _progress(content: Mapping[str, Any]) -> int | None:
    progress = content.get("progress")
    return min(100, max(0, progress)) if isinstance(progress, int) else None
