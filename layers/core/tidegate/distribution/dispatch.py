"""Creates the transfers of a Job at the provider. May run any number of times.

If the provider's answer is lost, the transfer is created again, a few times. The targets may then get the same content
twice, which is harmless; a lost transfer would keep them waiting until the deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.distribution.fleet.inbox import transfer_token
from tidegate.distribution.model import Job
from tidegate.distribution.ports import Engine
from tidegate.distribution.recovery import Heartbeat
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.store.transfers import TransferStore
from tidegate.distribution.targets import CODE_JOB_FAILED, Shard, TargetReport
from tidegate.distribution.transfers import INTENDED, REFUSED, REJECTED, SENT, UNKNOWN, Transfer
from tidegate.errors import AnswerLost, Busy, NotAccepted, TransferRefused
from tidegate.files.contents import ContentStore

logger = Logger(service="tidegate", child=True)
DISPATCHED, WAITING, OVER = "dispatched", "waiting", "over"
# Longer than any call to a provider: nobody waits for the answer to an intent of this age.
_INTENT_SECONDS = 60
_MOST_UNANSWERED = 3


class Dispatch:
    def __init__(
        self,
        jobs: JobStore,
        targets: TargetStore,
        transfers: TransferStore,
        contents: ContentStore,
        engine: Engine,
        heartbeat: Heartbeat,
        clock: Clock,
    ) -> None:
        self._jobs = jobs
        self._targets = targets
        self._transfers = transfers
        self._contents = contents
        self._engine = engine
        self._heartbeat = heartbeat
        self._clock = clock

    def dispatch(self, project_id: str, job_key: str) -> str:
        job = self._heartbeat.still_open(project_id, job_key)
        if job is None:
            return OVER
        stored = {transfer.number: transfer for transfer in self._transfers.list(job)}
        first = job.wave * len(job.portions)
        numbers = range(first, first + len(job.portions))
        states = [self._dispatch_one(job, number, stored.get(number)) for number in numbers]
        if WAITING in states:
            return WAITING
        if REJECTED in states:
            self._after_rejection(
                job, [t for t in self._transfers.list(job) if t.state == REJECTED and t.number >= first]
            )
        if job.spec.waves:
            self._jobs.wave_sent(job, self._clock())
        return DISPATCHED

    def _after_rejection(self, job: Job, rejected: Sequence[Transfer]) -> None:
        if len(rejected) == len(job.portions):
            raise TransferRefused(rejected[0].reason or "the provider refused the transfer without a reason")
        for transfer in rejected:
            self._fail(job, transfer)

    def _fail(self, job: Job, transfer: Transfer) -> None:
        """Fails the targets of this transfer only, not those of other transfers or later waves."""
        report = TargetReport(CODE_JOB_FAILED, transfer.reason or "the provider refused the transfer")
        shards = self._targets.shards(job, transfer.shards)
        failed = [shard.after_all(report, lambda target: job.in_wave(target, job.wave)) for shard in shards]
        changed = [after for before, after in zip(shards, failed, strict=True) if after is not before]
        if changed and not self._targets.save(job, changed, self._clock()):
            raise Busy("another poll changed the targets at the same time: the step is retried")

    def _dispatch_one(self, job: Job, number: int, transfer: Transfer | None) -> str:
        ours = False
        if transfer is None and job.wave_limits and not self._shards(job, *job.portions[number % len(job.portions)]):
            return DISPATCHED
        if transfer is None:
            transfer, ours = self._transfers.intend(job, self._intent(job, number))
        if transfer.state == REJECTED:
            return REJECTED
        if transfer.state in (SENT, UNKNOWN):
            return DISPATCHED
        if transfer.state == REFUSED:
            ours = self._transfers.ask_again(job, transfer, self._clock().timestamp())
            if not ours:
                return WAITING
        if ours or self._engine.repeatable:
            return self._create(job, transfer)
        return self._wait_for_answer(job, transfer)

    def _intent(self, job: Job, number: int) -> Transfer:
        first, last = job.portions[number % len(job.portions)]
        token = transfer_token(job.key, number, job.shard_count or 0)
        return Transfer(number, token, first, last, INTENDED, asked_at=self._clock().timestamp())

    def _create(self, job: Job, transfer: Transfer) -> str:
        content = self._contents.get(job.project_id, job.spec.file_signature)
        shards, size = self._shards(job, transfer.first_shard, transfer.last_shard), content.size if content else 0
        try:
            transfer_id = self._engine.create(job, transfer, shards, size)
        except NotAccepted as error:
            logger.warning("the provider did not accept the transfer", job_id=job.job_id, reason=error.detail)
            self._transfers.settle(job, transfer, REFUSED)
            return WAITING
        except AnswerLost as error:
            logger.warning("the provider's answer was lost", job_id=job.job_id, reason=error.detail)
            return self._unanswered(job, transfer)
        except TransferRefused as error:
            logger.warning("the provider refused a transfer", job_id=job.job_id, reason=error.detail)
            self._transfers.settle(job, transfer, REJECTED, reason=error.detail)
            return REJECTED
        self._transfers.settle(job, transfer, SENT, transfer_id=transfer_id)
        stored = self._jobs.sent(job, self._clock(), transfer_id, size)
        if stored.ended:
            # Another execution ended the Job meanwhile, after a cancel, and could not terminate this transfer.
            unfinished = [target for shard in shards for target in shard.unfinished]
            self._engine.terminate(job, replace(transfer, transfer_id=transfer_id), unfinished)
        return DISPATCHED

    def _shards(self, job: Job, first: int, last: int) -> list[Shard]:
        """These shards with the targets of the present wave only. Omits shards without any."""
        found = self._targets.shards(job, range(first, last + 1))
        if not job.wave_limits:
            return found
        return [some for shard in found if (some := shard.only(lambda t: job.in_wave(t, job.wave))).states]

    def _wait_for_answer(self, job: Job, transfer: Transfer) -> str:
        """Another dispatcher requested the transfer and has not stored an answer. Waits for it, then tries again."""
        if self._clock().timestamp() - transfer.asked_at < _INTENT_SECONDS:
            return WAITING
        logger.error("the dispatcher of this transfer died", job_id=job.job_id, transfer=transfer.token)
        return self._unanswered(job, transfer)

    def _unanswered(self, job: Job, transfer: Transfer) -> str:
        unanswered = transfer.unanswered + 1
        if unanswered < _MOST_UNANSWERED:
            self._transfers.settle(job, transfer, REFUSED, unanswered=unanswered)
            return WAITING
        self._transfers.settle(job, transfer, UNKNOWN)
        return DISPATCHED
