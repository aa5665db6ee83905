"""The agent's process: polls for transfers, delivers them and reports, for one project or for several."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidegate_client.agent.codes import Code, Restarting, code_of
from tidegate_client.agent.delivery import Delivery
from tidegate_client.agent.disk import Fence, Partials, require_private
from tidegate_client.agent.inbox import DUPLICATE, Inbox, Push, Reporter, is_truncated, key_of
from tidegate_client.agent.journal import Journal, JournalError, Key
from tidegate_client.agent.options import AgentOptions, Grant, no_permits
from tidegate_client.agent.preheat import Staged, Switcher, result_of
from tidegate_client.agent.releases import HostReleases
from tidegate_client.agent.service import (
    Health,
    Monitor,
    Statistics,
    free_bytes,
    local_pages,
    notify_systemd,
    write_health,
    write_instance,
)
from tidegate_client.agent.threads import PollTrigger, SupervisedThread, WorkQueue
from tidegate_client.agent.update import make_self_update, version
from tidegate_client.client import Client
from tidegate_client.config import Config
from tidegate_client.download import Cancelled, Stalled
from tidegate_client.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, TidegateError, Unauthorized
from tidegate_client.http import make_pool
from tidegate_client.inputs import Presence, Transfer
from tidegate_client.rates import (
    ACTIVE_SECONDS,
    PUSHED_ROUND,
    Backoff,
    BothLimits,
    JobLimits,
    Pace,
    RateLimit,
    limit_of,
)
from tidegate_client.swarm.host import NETWORK_THREADS, SwarmHost

log = logging.getLogger("tidegate.agent")

REPORT_EVERY = 3600.0
CHECK_EVERY = 5.0


class PresenceReporter:
    """Reports this host's site and peer addresses to the API: at the start, on change, and every hour."""

    def __init__(self, client: Client, agent_id: str, swarm: SwarmHost, stopping: threading.Event) -> None:
        self._client = client
        self._agent_id = agent_id
        self._swarm = swarm
        self._stopping = stopping
        self._backoff = Backoff(longest=300.0)

    def run(self) -> None:
        reported: Presence | None = None
        due = 0.0
        while not self._stopping.is_set():
            presence = self._swarm.presence()
            pause = CHECK_EVERY
            if presence != reported or time.monotonic() >= due:
                try:
                    self._client.agents.tell_presence(self._agent_id, presence)
                except (Invalid, NotFound) as error:
                    # Wrong addresses, or an API without swarms: try again in an hour.
                    log.warning("the API refuses this host's peer addresses, next attempt in an hour: %s", error)
                    reported, due = presence, time.monotonic() + REPORT_EVERY
                except TidegateError as error:
                    pause = self._backoff.next()
                    log.warning("reporting this host's peer addresses failed, next attempt in %.1f s: %s", pause, error)
                else:
                    self._backoff.reset()
                    reported, due = presence, time.monotonic() + REPORT_EVERY
            self._stopping.wait(pause)


__all__ = ["Agent", "AgentOptions"]

HEALTH_EVERY = 1.0
BEAT_EVERY = 30.0
SWEEP_EVERY = 600.0
# If a poll takes longer than this, the API is overloaded.
SLOW_POLL = 2.0
FIRST_STALL_PAUSE, LONGEST_STALL_PAUSE = 2.0, 60.0
# How long the last results may take to reach the API when the agent stops; the journal keeps the rest.
LAST_REPORT_SECONDS = 5.0


class Agent:
    """The agent of one project: it polls for transfers, delivers them in worker threads, and reports the results.

    One thread polls, several deliver, one reports; the main thread writes the health file and waits for a signal."""

    def __init__(
        self,
        client: Client,
        options: AgentOptions,
        *,
        limit: RateLimit | None = None,
        notify: Callable[[str], None] = notify_systemd,
    ) -> None:
        """Prepares the agent.

        `limit` is shared by all agents of the process. `notify` sends states such as READY=1 to systemd."""
        self._notify = notify
        self._client = client
        self._options = options
        self._fence = Fence(options.root, options.permits.directories, options.container_root)
        require_private("--state-dir", options.state_dir, create=True)
        self._journal = Journal(options.state_dir)
        client.agents.instance = self._instance = self._journal.begin_process()
        write_instance(options.state_dir, self._instance)
        self._partials = Partials(
            self._journal, self._fence, seconds=options.keep_partial_seconds, most_bytes=options.keep_partial_bytes
        )
        self._poll_trigger = PollTrigger()
        self._inbox = Inbox(self._poll_trigger.trigger)
        self._reporter = Reporter(client, options.agent_id, self._inbox, self._journal, every=options.report_every)
        self._queue = WorkQueue()
        self._stalls: Counter[Key] = Counter()
        self._statistics = Statistics()
        self._draining = threading.Event()
        self._aborting = threading.Event()
        self._key_accepted = False
        limit = limit or limit_of(options.limit_rate)
        if own := limit_of(options.own_limit_rate):
            limit = BothLimits(limit, own) if limit else own
        self._swarm = (
            SwarmHost(options.agent_id, options.state_dir, options.swarm, limit, self._count_bytes)
            if options.swarm
            else None
        )
        self._list_truncated = False
        self.restarting = False
        self._update = make_self_update(options, self._journal, self._restart)
        self.failure: ApiError | None = None
        self._delivery = Delivery(
            pool=make_pool(options.proxy, maxsize=options.parallel + (NETWORK_THREADS if options.swarm else 0)),
            inbox=self._inbox,
            journal=self._journal,
            partials=self._partials,
            fence=self._fence,
            agent_id=options.agent_id,
            stopping=self._aborting,
            permits=options.permits,
            patience=options.patience,
            limits=JobLimits(limit),
            on_bytes=self._count_bytes,
            swarm=self._swarm,
            update=self._update,
            is_told=lambda: self._push.connected,
            list_wanted=lambda: client.agents.transfers(options.agent_id, wait=0),
            owner_of=lambda file: self._releases.owner_of(file),
        )
        self._releases = HostReleases(
            client,
            options.agent_id,
            self._delivery,
            self._draining,
            hooks=options.hooks,
            check_ports=options.check_ports,
            check_rate=RateLimit(options.check_rate) if options.check_rate else None,
        )
        client.agents.goals, client.agents.on_new_goals = self._releases.told, self._releases.trigger
        self._releasing = SupervisedThread("releases", self._releases.run, self._draining)
        self._switcher = Switcher(
            self._journal,
            self._inbox,
            self._delivery.switch,
            self._fence.remove,
            self._end_staged,
            self._poll_trigger.trigger,
            self._aborting,
        )
        self._switching = SupervisedThread("switcher", self._switcher.run, self._aborting)
        self._poller = SupervisedThread("poller", self._poll, self._draining)
        self._workers = [
            SupervisedThread(f"worker-{number}", self._work, self._aborting) for number in range(options.parallel)
        ]
        self._push = Push(
            client,
            self._inventory,
            self._poll_trigger.trigger,
            self._draining,
            on_ended=self._inbox.end,
            proxy=options.proxy,
            on_new_goals=self._releases.trigger,
        )
        self._monitor = Monitor(
            options,
            self._statistics,
            self._inbox,
            self._reporter,
            self._partials,
            self._poller,
            [*self._workers, self._switching],
            lambda: self._push.connected,
            self._fence.moved,
            [self._swarm.no_port] if self._swarm and self._swarm.no_port else [],
        )

    def stop(self) -> None:
        """Accepts no more transfers and finishes the running ones.

        A second call aborts the running transfers; their part files stay."""
        if self._draining.is_set():
            self._aborting.set()
        self._draining.set()

    def _count_bytes(self, count: int) -> None:
        self._statistics.add("received_bytes_total", count)

    def _restart(self) -> None:
        self.restarting = True
        self._draining.set()

    def run(self) -> None:
        """Runs until `stop()` is called, or until the API refuses the host. If the API refuses it, `failure` is set."""
        with contextlib.ExitStack() as stack:
            if self._options.metrics:
                pages = local_pages(*self._options.metrics, self.health, self.metrics, self._monitor.page_warnings)
                stack.enter_context(pages)
            if self._swarm is not None:
                self._swarm.start()
                stack.callback(self._swarm.close)
                presence = PresenceReporter(self._client, self._options.agent_id, self._swarm, self._draining)
                SupervisedThread("presence", presence.run, self._draining).start()
            self._switcher.load()
            self._releases.load()
            for thread in (self._poller, *self._workers, self._switching, self._releasing, self._reporter.thread):
                thread.start()
            if self._options.push:
                SupervisedThread("push", self._push.run, self._draining).start()
            SupervisedThread("checks", self._releases.check_contents, self._draining).start()
            self._notify("READY=1")
            if self._options.permits.refusal:
                log.warning("%s", self._options.permits.refusal)
            else:
                where = ", ".join(map(str, self._fence.writable))
                log.info("agent %s receives files in %s", self._options.agent_id, where)
            self._housekeeping()
            self._notify("STOPPING=1")
            self._drain()

    def _housekeeping(self) -> None:
        """Writes the health file, notifies the watchdog and deletes old part files, until the agent stops."""
        sweep_at = 0.0
        while not self._draining.wait(HEALTH_EVERY):
            try:
                if time.monotonic() >= sweep_at:
                    sweep_at = time.monotonic() + SWEEP_EVERY
                    self._partials.sweep()
                health = self.health()
                write_health(self._options.state_dir, health)
                if health["healthy"]:
                    self._notify("WATCHDOG=1")
            except Exception:
                log.exception("writing health or removing old part files failed; transfers continue")

    def _drain(self) -> None:
        log.info("stopping: waiting up to %.0f s for %d transfers", self._options.drain_seconds, self._inbox.active())
        deadline = time.monotonic() + self._options.drain_seconds
        self._queue.close()
        self._poll_trigger.close()
        while any(worker.is_alive() for worker in self._workers) and time.monotonic() < deadline:
            if self._aborting.wait(0.02):
                break
        self._aborting.set()
        for worker in self._workers:
            worker.join(max(0.2, deadline - time.monotonic()) / len(self._workers))
        # Staged files were put in place until now; from here on the next process does that.
        self._switcher.close()
        self._switching.join(1.0)
        self._releases.trigger()
        self._releasing.join(1.0)
        complete = self._reporter.drain(time.monotonic() + LAST_REPORT_SECONDS)
        log.info("stopped%s", "" if complete else "; results that the API has not received are kept for the next start")
        self._close_journal()

    def _close_journal(self) -> None:
        """Closes the journal, unless a thread may still use it: a worker, the switcher, the releases or the reporter.

        A thread that is still in a call ends with the process, and an SQLite file need not be closed. The poller is
        not awaited. Its long poll may take 20 more seconds, and the poller ends by itself when it finds the journal
        closed."""
        if not any(
            thread.is_alive() for thread in (*self._workers, self._switching, self._releasing, self._reporter.thread)
        ):
            self._journal.close()
            self._fence.close()

    def _poll(self) -> None:
        backoff = Backoff()
        pace = Pace(self._options.wait, active_until=time.monotonic() + ACTIVE_SECONDS)
        while not self._draining.is_set():
            began = time.monotonic()
            try:
                items = self._client.agents.transfers(
                    self._options.agent_id, wait=pace.wait(began, pushed=self._push.connected)
                )
            except Conflict as error:
                if error.code == DUPLICATE:
                    # Another host has this host's id now: put nothing more in place here.
                    self.failure = error
                    self._aborting.set()
                    self._draining.set()
                    return
                self._back_off(backoff, error)
                continue
            except (Unauthorized, Forbidden) as error:
                # If the first poll is refused, the key is wrong. If a later poll is refused, the API may be at fault.
                if not self._key_accepted:
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
            if not self._key_accepted and self._update:
                self._update.releases.confirm()
            self._key_accepted = True
            self._monitor.polled()
            backoff.reset()
            now = time.monotonic()
            self._list_truncated = is_truncated(items)
            self._reporter.spread(max((item.get("spread_s") or 0 for item in items), default=0))
            try:
                new, lost = self._queue_transfers(items, began)
            except JournalError:
                if self._draining.is_set():
                    return
                raise
            if new:
                self._poll_trigger.found_new(slow=now - began > SLOW_POLL)
            # Staged transfers need no fresh URLs, and thousands of hosts may have one for days: do not poll for them.
            listed = self._inbox.has_work(items)
            pause = pace.pause(now, listed=listed, new=new, pushed=self._push.connected)
            triggered = self._sleep(began + pause)
            if not (triggered or lost or self._inbox.active()) and self._push.connected:
                # What it listed is over. The API says when there is more, so it need not be asked.
                self._sleep(began + pace.pause(now, listed=False, new=False, pushed=True))

    def _sleep(self, until: float) -> bool:
        """Sleeps until the given time, or until a poll is triggered.

        Returns True if a poll was triggered, else False. Meanwhile, reports to the watchdog that the thread is
        alive."""
        while not self._draining.is_set():
            self._poller.beat()
            left = until - time.monotonic()
            if left <= 0:
                return False
            if self._poll_trigger.sleep(min(left, BEAT_EVERY)):
                return True
        return False

    def _inventory(self) -> dict[str, Any]:
        """Returns the facts about this host that are sent when the WebSocket connects."""
        facts = {
            "version": version(),
            "free_bytes": free_bytes(self._options.root),
            "zone": self._options.zone,
            "instance": self._instance,
            "allows": self._releases.allows,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def _back_off(self, backoff: Backoff, error: TidegateError) -> None:
        pause = backoff.next()
        self._statistics.add("polls_total", result="failed")
        log.warning("polling the API failed, next attempt in %.1f s: %s", pause, error)
        self._poller.beat()
        self._draining.wait(pause)

    def _queue_transfers(self, items: list[Transfer], asked_at: float) -> tuple[bool, bool]:
        """Queues the new transfers of a poll, and reports again each result that the API has lost.

        Returns (whether there were new transfers, whether the API has lost results)."""
        if self._draining.is_set():
            return False, False
        new, lost_results = self._inbox.accept_poll(items, has_result=self._journal.has_result, asked_at=asked_at)
        for transfer in new:
            self._releases.coming(transfer)
            self._queue.put(transfer)
        for result in lost_results:
            self._reporter.report_again(result)
        return bool(new), bool(lost_results)

    def _work(self) -> None:
        while (transfer := self._queue.get()) and not self._draining.is_set():
            try:
                self._deliver(transfer)
            except BaseException:
                # Forget it: the next poll lists it as new.
                self._inbox.drop(key_of(transfer))
                self._poll_trigger.trigger(PUSHED_ROUND, again=False)
                raise

    def _deliver(self, transfer: Transfer) -> None:
        name, key, began = transfer["file_name"], key_of(transfer), time.monotonic()
        try:
            figures, staged = self._delivery.run(transfer)
        except Cancelled:
            log.info("%s: cancelled; the bytes received so far are kept for the next attempt", name)
            self._releases.coming(transfer, seconds=0.0)
            self._inbox.drop(key)
            if not self._inbox.has_ended(key):
                # Two polls did not list it, perhaps by mistake: no other one would come for hours.
                self._poll_trigger.trigger(PUSHED_ROUND, again=False)
            self._stalls.pop(key, None)
            return
        except Restarting:
            log.info("%s: a new version of the agent starts now and reports the result", name)
            self._inbox.drop(key)
            return
        except Stalled as error:
            self._postpone(transfer, error)
            return
        except Exception as error:
            # Any error is reported as the result of this transfer; the other transfers continue.
            code = code_of(error)
            log.warning("%s: failed with code %d: %s", name, code, error, exc_info=code is Code.INTERNAL)
            self._finish(transfer, code, str(error))
            if transfer.get("release"):
                self._releases.delivered(transfer, error)
            return
        seconds = time.monotonic() - began
        if staged:
            log.info("%s: staged after %.1f s, to be put in place at %s", name, seconds, transfer.get("activate_at"))
            self._stalls.pop(key, None)
            self._switcher.add(staged)
            self._reporter.wake()
            return
        done = "kept for its release" if transfer.get("release") else "put in place"
        log.info("%s: %s after %.1f s, %d bytes downloaded", name, done, seconds, figures["size"])
        self._finish(transfer, Code.DONE, "", figures)
        if transfer.get("release"):
            self._releases.delivered(transfer)

    def _end_staged(self, staged: Staged, code: Code, message: str) -> None:
        self._finish(staged.transfer, code, message, staged.figures if code is Code.DONE else None)

    def _postpone(self, transfer: Transfer, error: Stalled) -> None:
        """Queues a stalled transfer again with a delay, so that the worker is free for other transfers.

        A transfer may be postponed any number of times, until its Job ends."""
        key = key_of(transfer)
        pause = min(LONGEST_STALL_PAUSE, FIRST_STALL_PAUSE * 2 ** self._stalls[key])
        self._stalls[key] += 1
        self._statistics.add("stalls_total")
        log.warning("%s: the download stalled, next attempt in %.0f s: %s", transfer["file_name"], pause, error)
        self._queue.put(transfer, delay=pause)

    def _finish(self, transfer: Transfer, code: Code, message: str, figures: dict[str, Any] | None = None) -> None:
        self._stalls.pop(key_of(transfer), None)
        self._statistics.add("transfers_total", result=code.name.lower())
        self._reporter.finished(result_of(transfer, code, message, figures))
        if self._list_truncated and not self._inbox.active():
            # The last list was full, so there may be more transfers.
            self._poll_trigger.trigger()

    def health(self) -> Health:
        return self._monitor.health()

    def metrics(self) -> str:
        return self._monitor.metrics()


# --- group
# Several projects in one process: an agent for each, one bandwidth limit, one page of health and metrics.

# The name of the project that the process was started for.
FIRST = "default"
# Each agent reports every second that it is healthy.
HEALTHY_SECONDS = 10.0


@dataclass
class GroupNotifier:
    """Combines the systemd notifications of several agents. Agents that have ended do not count.

    The group is ready when all agents are ready, and alive while all agents are healthy."""

    ready: set[str] = field(default_factory=set)
    healthy_at: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def notify(self, name: str, state: str) -> None:
        with self._lock:
            if state == "READY=1":
                self.ready.add(name)
                if self.ready | self.ended == self.names:
                    notify_systemd(state)
            elif state == "WATCHDOG=1":
                self.healthy_at[name] = now = time.monotonic()
                running = self.names - self.ended
                if all(now - self.healthy_at.get(one, float("-inf")) < HEALTHY_SECONDS for one in running):
                    notify_systemd(state)
            elif state == "STOPPING=1":
                self.ended.add(name)
                if self.ended == self.names:
                    notify_systemd(state)


class AgentGroup:
    """Runs the agents of several projects.

    If the API refuses the key of one agent, only that agent ends. `failure` is set if the API refused all keys."""

    def __init__(self, agents: dict[str, Agent], notifier: GroupNotifier, metrics: tuple[str, int] | None) -> None:
        self._agents = agents
        self._metrics = metrics
        self._page_warnings: list[str] = []
        notifier.names |= agents.keys()

    def stop(self) -> None:
        for agent in self._agents.values():
            agent.stop()

    @property
    def restarting(self) -> bool:
        return any(agent.restarting for agent in self._agents.values())

    @property
    def failure(self) -> ApiError | None:
        failures = [agent.failure for agent in self._agents.values()]
        return failures[0] if all(failures) else None

    def run(self) -> None:
        """Runs until all agents have ended. If one agent has to restart as a new version, all agents are stopped."""
        threads = [
            threading.Thread(target=self._run_one, args=(name, agent), name=f"agent-{name}")
            for name, agent in self._agents.items()
        ]
        with contextlib.ExitStack() as stack:
            if self._metrics:
                stack.enter_context(local_pages(*self._metrics, self.health, self.metrics, self._page_warnings))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _run_one(self, name: str, agent: Agent) -> None:
        agent.run()
        if agent.restarting:
            self.stop()
        elif agent.failure:
            log.error(
                "the API refuses this host with the login %r; its project gets no files here "
                "until the cause is removed and the agent is restarted: %s",
                name,
                agent.failure,
            )

    def health(self) -> Any:
        found = {name: agent.health() for name, agent in self._agents.items() if agent.failure is None}
        refused = [
            f"{name}: the API refuses it: {agent.failure}" for name, agent in self._agents.items() if agent.failure
        ]
        problems = refused + [f"{name}: {problem}" for name, one in found.items() for problem in one["problems"]]
        warnings = [f"{name}: {warning}" for name, one in found.items() for warning in one["warnings"]]
        warnings += self._page_warnings
        return {"healthy": not problems, "problems": problems, "warnings": warnings, "agents": found}

    def metrics(self) -> str:
        return merged_metrics({name: agent.metrics() for name, agent in self._agents.items()})


def merged_metrics(pages: dict[str, str]) -> str:
    """Joins the metrics of several agents into one page; each sample gets the label `profile`."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for name, page in pages.items():
        for line in page.splitlines():
            if line.startswith("#"):
                metric = line.split()[2]
                lines = heads.setdefault(metric, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                metric, labelled = _labelled(line, name)
                samples.setdefault(metric, []).append(labelled)
    every = [line for metric, lines in samples.items() for line in (*heads.get(metric, ()), *lines)]
    return "\n".join(every) + "\n"


def _labelled(line: str, profile: str) -> tuple[str, str]:
    sample, _, value = line.rpartition(" ")
    metric, brace, labels = sample.partition("{")
    rest = f",{labels}" if brace else "}"
    return metric, f'{metric}{{profile="{profile}"{rest} {value}'


def make_group(client: Client, others: Mapping[str, Config], options: AgentOptions) -> AgentGroup:
    """Creates an agent for each login. Each agent has its own permits.

    Only the first agent serves peers and may update the process."""
    limit, notifier = limit_of(options.limit_rate), GroupNotifier()
    agents = {FIRST: Agent(client, replace(options, metrics=None), limit=limit, notify=partial(notifier.notify, FIRST))}
    for name, config in others.items():
        grant = options.also.get(name) or Grant(no_permits(name))
        pool = make_pool(options.proxy, maxsize=4)
        mine = Client(config.required_url(), config.key, attempts=0, pool=pool)
        swarm = replace(options.swarm, listen=()) if options.swarm else None
        changed = replace(
            options,
            state_dir=options.state_dir / f"also-{name}",
            metrics=None,
            self_update=False,
            swarm=swarm,
            permits=grant.permits,
            container_root=grant.container_root,
            own_limit_rate=grant.limit_rate,
            hooks={},
            check_ports=frozenset(),
        )
        agents[name] = Agent(mine, changed, limit=limit, notify=partial(notifier.notify, name))
    return AgentGroup(agents, notifier, options.metrics)
