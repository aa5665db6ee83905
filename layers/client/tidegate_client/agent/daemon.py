"""The agent's threads: one polls, N deliver, one reports; the main thread waits for a signal."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import urllib3

from tidegate_client.agent.backoff import Backoff
from tidegate_client.agent.codes import Code, code_of
from tidegate_client.agent.delivery import Delivery
from tidegate_client.agent.inbox import Inbox, key_of
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.pace import LIVELY_SECONDS, Pace
from tidegate_client.agent.reporter import Reporter
from tidegate_client.client import Client
from tidegate_client.download import Cancelled
from tidegate_client.errors import ApiError, Forbidden, TidegateError, Unauthorized
from tidegate_client.models import Transfer, TransferResult

log = logging.getLogger("tidegate.agent")

ABANDONED_PART_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class AgentOptions:
    agent_id: str
    root: Path
    state_dir: Path
    parallel: int = 4
    container_root: Path | None = None
    wait: int = 20
    report_every: float = 2.0
    drain_seconds: float = 30.0
    patience: float = 120.0


class Agent:
    def __init__(self, client: Client, options: AgentOptions) -> None:
        self._client = client
        self._options = options
        self._journal = Journal(options.state_dir)
        self._inbox = Inbox()
        self._reporter = Reporter(client, options.agent_id, self._inbox, self._journal, every=options.report_every)
        self._waiting: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._draining = threading.Event()
        self._aborting = threading.Event()
        self.failure: ApiError | None = None
        self._delivery = Delivery(
            pool=urllib3.PoolManager(maxsize=options.parallel),
            inbox=self._inbox,
            journal=self._journal,
            root=options.root,
            container_root=options.container_root,
            agent_id=options.agent_id,
            stopping=self._aborting,
            patience=options.patience,
        )

    def stop(self) -> None:
        """Take no more, finish what runs; the second time: drop it (the part files stay)."""
        if self._draining.is_set():
            self._aborting.set()
        self._draining.set()

    def run(self) -> None:
        """Returns after `stop()` and the drain, or when the API refuses the key."""
        self._journal.sweep_parts(ABANDONED_PART_SECONDS)
        workers = [threading.Thread(target=self._work, name=f"worker-{n}") for n in range(self._options.parallel)]
        for thread in [threading.Thread(target=self._poll, name="poller"), *workers]:
            # Daemon threads: a long poll or a stuck socket must not hold up the end.
            thread.daemon = True
            thread.start()
        self._reporter.start()
        log.info("agent %s takes files into %s", self._options.agent_id, self._options.root)
        while not self._draining.wait(1.0):
            pass
        self._drain(workers)

    def _drain(self, workers: list[threading.Thread]) -> None:
        log.info("draining: %d under way", self._inbox.active())
        deadline = time.monotonic() + self._options.drain_seconds
        for _ in workers:
            self._waiting.put(None)
        while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
            if self._aborting.wait(0.02):
                break
        self._aborting.set()
        for worker in workers:
            worker.join(max(0.2, deadline - time.monotonic()) / len(workers))
        told = self._reporter.drain(time.monotonic() + 5.0)
        log.info("stopped%s", "" if told else "; results the API has not taken are kept for the next start")
        if not any(worker.is_alive() for worker in workers):
            self._journal.close()

    def _poll(self) -> None:
        backoff, accepted = Backoff(), False
        pace = Pace(self._options.wait, lively_until=time.monotonic() + LIVELY_SECONDS)
        while not self._draining.is_set():
            began = time.monotonic()
            try:
                items = self._client.agents.transfers(self._options.agent_id, wait=pace.wait(began))
            except (Unauthorized, Forbidden) as error:
                # Refused from the start is a wrong key; refused later may be the API's own trouble.
                if not accepted:
                    self.failure = error
                    self._draining.set()
                    return
                self._back_off(backoff, error)
                continue
            except TidegateError as error:
                self._back_off(backoff, error)
                continue
            if backoff.failures:
                log.info("the API answers again")
            accepted = True
            backoff.reset()
            now = time.monotonic()
            pause = pace.pause(now, listed=bool(items), new=self._take(items))
            self._draining.wait(max(0.0, pause - (now - began)))

    def _back_off(self, backoff: Backoff, error: TidegateError) -> None:
        pause = backoff.next()
        log.warning("the API cannot be asked, trying again in %.1f s: %s", pause, error)
        self._draining.wait(pause)

    def _take(self, items: list[Transfer]) -> bool:
        if self._draining.is_set():
            return False
        new, repeat = self._inbox.offer(items, settled=self._journal.has)
        for result in repeat:
            self._reporter.repeat(result)
        for transfer in new:
            self._waiting.put(transfer)
        return bool(new)

    def _work(self) -> None:
        while (transfer := self._waiting.get()) and not self._draining.is_set():
            self._deliver(transfer)

    def _deliver(self, transfer: Transfer) -> None:
        name, began = transfer["file_name"], time.monotonic()
        try:
            self._delivery.run(transfer)
        except Cancelled:
            log.info("%s: called off", name)
            self._inbox.drop(key_of(transfer))
            return
        except Exception as error:
            # Whatever it is, somebody waits for an answer about this file, and the other transfers go on.
            code = code_of(error)
            log.warning("%s: failed with %d: %s", name, code, error, exc_info=code is Code.INTERNAL)
            self._reporter.finished(_result(transfer, code, str(error)))
            return
        log.info("%s: in place after %.1f s", name, time.monotonic() - began)
        self._reporter.finished(_result(transfer, Code.DONE, ""))


def _result(transfer: Transfer, code: Code, message: str) -> TransferResult:
    result: TransferResult = {
        "transfer_id": transfer["transfer_id"],
        "container_id": transfer.get("container_id") or "",
        "error_code": int(code),
    }
    if message:
        result["error_msg"] = message[:500]
    if code is Code.DONE:
        result["progress"] = 100
    return result
