"""The BlueKing GSE engine: GSE sends the file from the source host to the targets, peer to peer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from tidegate.common.ids import iso
from tidegate.distribution import Distribution
from tidegate.distribution.fleet import wake_soon
from tidegate.distribution.inbox import InboxEntry, staging_id
from tidegate.distribution.model import DONE, IN_PROGRESS, Figures, Job, Results, Shard, Target, TargetReport, Transfer
from tidegate.errors import AnswerLost, FetchError, NotAccepted, NotSent, SourceBroken, TransferRefused, UrlNotAllowed
from tidegate.http.model import MEGABYTE, Limits, Reply

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


# --- gse results
# Reads GSE's answer to `get_transfer_file_result`.

_FAR_FUTURE = 2**35


def read_results(data: Any) -> Results:
    """The reports on targets, and the report of the upload if it failed. Ignores malformed rows."""
    targets: dict[Target, TargetReport] = {}
    upload: TargetReport | None = None
    for row in _rows(data):
        content = row["content"]
        report = TargetReport(
            int(row["error_code"]), str(row.get("error_msg") or ""), _progress(content), _figures(content)
        )
        if content.get("type") == "upload":
            upload = report if report.code not in (DONE, IN_PROGRESS) else upload
        else:
            agent, container = content.get("dest_agent_id"), content.get("dest_container_id")
            targets[Target(str(agent or ""), str(container or ""))] = report
    return Results(targets, upload)


def _rows(data: Any) -> Iterable[dict[str, Any]]:
    rows = data.get("result") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise SourceBroken("GSE's answer has no list at data.result")
    return [row for row in rows if isinstance(row, dict) and _is_result(row)]


def _is_result(row: Mapping[str, Any]) -> bool:
    return _is_number(row.get("error_code")) and isinstance(row.get("content"), dict)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def _progress(content: Mapping[str, Any]) -> int | None:
    progress = content.get("progress")
    return min(100, max(0, progress)) if isinstance(progress, int) else None


def _figures(content: Mapping[str, Any]) -> Figures | None:
    """The figures of a transfer. Numbers that are not plausible are left out. None if no figure is left."""
    size, speed, start, end = (
        value if isinstance(value := content.get(name), int) and 0 < value < 2**53 else None
        for name in ("size", "speed", "start_time", "end_time")
    )
    found = Figures(size, speed, _moment(start), _moment(end))
    return found if any(value is not None for value in found) else None


def _moment(at: int | None) -> str | None:
    """The time as text. `at`: Unix time in seconds, or in milliseconds if the number is too large for seconds.

    None if there is no plausible time."""
    if at is None or at >= 1000 * _FAR_FUTURE:
        return None
    return iso(datetime.fromtimestamp(at if at < _FAR_FUTURE else at / 1000, UTC))


# --- gse
# The BlueKing GSE engine: GSE sends the file from the source host to the targets, peer to peer.

_LIMITS = Limits(connect=5, read=25, total=30, max_bytes=64 * MEGABYTE)
_PATH = "/api/v2/task/extensions/"
# How long a file counts as present on the source host after it was fetched.
_STAGED_SECONDS = 6 * 3600
# A gateway's answers when its backend did not answer: the transfer may have been created.
_LOST_BEHIND_A_GATEWAY = frozenset({502, 504})
# GSE's answers to unknown credentials: they may have been rotated since they were read.
_UNAUTHORIZED = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class GseConfig:
    base_url: str
    tenant_id: str
    source: Target
    source_user: str
    store_dir: str
    # MB per second, 0 for no limit.
    upload_speed: int = 0
    download_speed: int = 0


class GseCredentials:
    """GSE's credentials from Secrets Manager, read once, and again after a rotation."""

    def __init__(self, secretsmanager: SecretsManagerClient, secret_id: str) -> None:
        self._secretsmanager = secretsmanager
        self._secret_id = secret_id
        self._text = ""

    def get(self) -> str:
        """The credentials as JSON text on one line."""
        if not self._text:
            self.refresh()
        return self._text

    def refresh(self) -> bool:
        """Reads the secret again. Returns whether it has changed."""
        before = self._text
        secret: dict[str, str] = json.loads(
            self._secretsmanager.get_secret_value(SecretId=self._secret_id)["SecretString"]
        )
        self._text = json.dumps(secret)
        return self._text != before


def gse_engine(d: Distribution) -> GseEngine:
    settings = d.settings
    config = GseConfig(
        settings.gse_base_url,
        settings.gse_tenant_id,
        Target(settings.gse_source_agent_id, settings.gse_source_container_id),
        settings.gse_source_user,
        settings.gse_store_dir,
        settings.gse_upload_speed,
        settings.gse_download_speed,
    )
    return GseEngine(d, config, GseCredentials(d.secretsmanager, settings.gse_credentials_id))


class GseEngine:
    repeatable = False

    def __init__(self, d: Distribution, config: GseConfig, credentials: GseCredentials) -> None:
        self._d = d
        self._config = config
        self._credentials = credentials

    def stage(self, job: Job, size: int) -> TargetReport:
        """Has the source host's agent fetch the file, once for all Jobs that deliver it."""
        entry = self._d.inbox.stage(self._staging(job, size))
        if entry.until <= self._d.clock().timestamp():
            self._d.inbox.forget_staging(entry, staged_before=self._d.clock().timestamp())
            entry = self._d.inbox.stage(self._staging(job, size))
        if entry.state.code is None:
            wake_soon(self._d, job.project_id, [self._config.source.agent_id], 0, directly=True)
        if entry.state.ended and not entry.state.succeeded:
            self._d.inbox.forget_staging(entry, staged_before=entry.until)
        return TargetReport(IN_PROGRESS if entry.state.code is None else entry.state.code, entry.state.message)

    def _staging(self, job: Job, size: int) -> InboxEntry:
        now = self._d.clock().timestamp()
        return InboxEntry(
            project_id=job.project_id,
            transfer_id=staging_id(job.spec.file_signature, now),
            target=self._config.source,
            file_name=job.spec.file_signature,
            target_file_dir=self._config.store_dir,
            target_user=self._config.source_user,
            signature=job.spec.file_signature,
            size=size,
            until=now + _STAGED_SECONDS,
        )

    def create(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> str:
        spec = job.spec
        if spec.mode:
            raise TransferRefused(f"GSE cannot set the mode {spec.mode} of a file: submit without `mode`")
        if spec.activate_at:
            raise TransferRefused("GSE cannot hold a file back until a given time: submit without `activate_at`")
        source = _agent(self._config.source) | {"user": self._config.source_user}
        targets = [_agent(target) | {"user": spec.target_user} for shard in shards for target in shard.unfinished]
        left = (job.deadline or 0) - self._d.clock().timestamp()
        body = {
            "timeout_seconds": max(1, int(left)),
            "auto_mkdir": True,
            "upload_speed": self._config.upload_speed,
            "download_speed": _megabytes(spec.limit_rate, self._config.download_speed),
            "tasks": [
                {
                    "source": {"file_name": spec.file_signature, "store_dir": self._config.store_dir, "agent": source},
                    "target": {"file_name": spec.file_name, "store_dir": spec.target_file_dir, "agents": targets},
                }
            ],
        }
        answer = _answer(self._create(body))
        if answer.get("code") != 0:
            raise TransferRefused(f"GSE answered {answer.get('code')}: {str(answer.get('message', ''))[:200]}")
        try:
            return str(answer["data"]["result"]["task_id"])
        except (KeyError, TypeError) as error:
            raise AnswerLost("GSE accepted the transfer but answered without a task_id") from error

    def _create(self, body: Mapping[str, Any]) -> Reply:
        """GSE's answer.

        NotAccepted if GSE surely created no transfer. AnswerLost if GSE may have created one. TransferRefused if GSE
        will never create it."""
        try:
            reply = self._post("async_transfer_file", body)
        except (UrlNotAllowed, NotSent) as error:
            raise NotAccepted(error.detail) from error
        except FetchError as error:
            if isinstance(error.__cause__, (NewConnectionError, ConnectTimeoutError)):
                raise NotAccepted(f"GSE could not be reached: {error.detail}") from error
            raise AnswerLost(f"GSE did not answer: {error.detail}") from error
        if reply.status in _LOST_BEHIND_A_GATEWAY:
            raise AnswerLost(f"a gateway in front of GSE answered {reply.status}")
        if reply.status == 429 or reply.status >= 500:
            raise NotAccepted(f"GSE answered {reply.status}")
        if reply.status >= 300:
            raise TransferRefused(f"GSE answered {reply.status}")
        return reply

    def egress(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> int:
        """The file's size for the first transfer of a Job, and 0 for the others.

        Only the source host fetches the file from S3, once for the Job."""
        return size if transfer.number == 0 else 0

    def results(self, job: Job, transfer: Transfer, open_shards: Sequence[int]) -> Results:
        results = read_results(self._call("get_transfer_file_result", {"task_id": transfer.transfer_id}))
        if results.upload is not None:
            # Perhaps the store of the source host was emptied: the next Job makes it fetch the file again.
            entry = self._staging(job, 0)
            self._d.inbox.forget_staging(entry, staged_before=transfer.asked_at + _STAGED_SECONDS)
        return results

    def remind(self, job: Job, targets: Sequence[Target]) -> None:
        """Does nothing, because GSE reaches its hosts by itself."""

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
        reply = self._send(name, body)
        if reply.status in _UNAUTHORIZED and self._credentials.refresh():
            reply = self._send(name, body)
        return reply

    def _send(self, name: str, body: Mapping[str, Any]) -> Reply:
        headers = {
            "content-type": "application/json",
            "x-bkapi-authorization": self._credentials.get(),
            "x-bk-tenant-id": self._config.tenant_id,
        }
        url = self._config.base_url.rstrip("/") + _PATH + name
        payload = json.dumps(body, ensure_ascii=False).encode()
        # The operator configured the address, not a caller.
        return self._d.http.send(
            "POST", url, headers=headers, body=payload, allow_private=True, limits=_LIMITS, redirects=0
        )


def _megabytes(limit_rate: int | None, configured: int) -> int:
    """The lower of the two limits, in GSE's unit: whole megabytes per second. 0 means no limit."""
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
        raise AnswerLost(f"GSE's answer (status {reply.status}) is not JSON") from error
    if not isinstance(answer, dict):
        raise AnswerLost(f"GSE's answer is not a JSON object, but {type(answer).__name__}")
    return answer
