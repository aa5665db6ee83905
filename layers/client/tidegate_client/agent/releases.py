"""Releases on a host: gets the goals from the API, puts whole revisions in place, checks them, and rolls back.

A revision is switched as a whole. The journal records that a switch has begun only when all files are on the host. From
then on, a restarted agent finishes the switch. A replaced file stays beside the new one as a hidden file, so a rollback
is a rename. If a hook or a check fails, the replaced files return at once, and this host refuses the revision for good.
The same happens if a check fails later, while the revision soaks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pwd
import random
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import urllib3

from tidegate_client.agent.codes import Code, RefusedPath, code_of
from tidegate_client.agent.delivery import Delivery, mode_of
from tidegate_client.agent.disk import (
    Place,
    copy_verified,
    has_content,
    link_hidden,
    new_hidden,
    open_hidden,
    remove_below,
    remove_hidden,
    require_private,
)
from tidegate_client.agent.journal import HiddenFile, JournalError, TreeRow
from tidegate_client.agent.trees import (
    CURRENT,
    RELEASES,
    RefusedArchive,
    free_name,
    from_blob,
    leads_to,
    look,
    move_into_place,
    point,
    stage,
    to_blob,
)
from tidegate_client.client import Client
from tidegate_client.errors import NotFound, TidegateError, UsageError
from tidegate_client.inputs import Transfer
from tidegate_client.rates import Backoff, RateLimit
from tidegate_client.uploads import sha256_of_stream

log = logging.getLogger("tidegate.agent")

# Files' metadata is compared this often; their content is read only if the metadata has changed.
DRIFT_EVERY = 300.0
# Pause between two readings of all content in place. How long a reading takes depends on `--check-rate`.
READ_EVERY = 3600.0
# If a goal is not reached, the host asks again after this time, because a transfer may have failed; then after twice as
# long, and so on, because the release of a whole fleet may be paused for days.
ASK_AGAIN, LONGEST_ASK_AGAIN = 90.0, 3600.0
# If a transfer takes longer, it may be lost: its content is requested again.
LONGEST_TRANSFER = 3600.0
HOOK_SECONDS = 300
CHECK_PAUSE = 1.0
MOST_OUTPUT = 4096
MOST_DRIFT = 20
# A project has at most this many releases, and the API accepts at most this many reports in a call.
MOST_REPORTS = 200
# Errors that a retry cannot mend: the revision has failed on this host.
HOPELESS = frozenset(
    {Code.PATH_REFUSED, Code.OWNER_REFUSED, Code.NO_SPACE, Code.WRITE_FAILED, Code.DIRECTORY_MOVED, Code.WRONG_CONTENT}
)
_SECRET = re.compile(r"(tg[ae]?_|whsec_)[A-Za-z0-9_/+=-]+|((?i:password|secret|token)\s*[=:]\s*)\S+")

GoalFile = dict[str, Any]
Goal = dict[str, Any]


@dataclass(frozen=True)
class Hook:
    """A program that the host's operator allowed by name. It gets no arguments. `user`: the user that it runs as."""

    path: Path
    user: str | None = None


def allowed_hook(text: str) -> tuple[str, Hook]:
    """Parses NAME=PATH or NAME=USER:PATH. Raises UsageError if a user other than root could change the program."""
    name, equals, rest = text.partition("=")
    user, colon, path = rest.rpartition(":")
    hook = Hook(Path(path), user if colon else None)
    if not equals or not name or not hook.path.is_absolute():
        raise UsageError(f"--allow-hook {text} is not NAME=/path/of/program, or NAME=USER:/path/of/program")
    try:
        status = hook.path.stat()
    except OSError as error:
        raise UsageError(f"--allow-hook {text}: {hook.path} cannot be used: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or not os.access(hook.path, os.X_OK):
        raise UsageError(f"--allow-hook {text}: {hook.path} is not a program")
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise UsageError(f"--allow-hook {text}: another user than root may change {hook.path}")
    require_private("--allow-hook", hook.path.resolve().parent)
    return name, hook


@dataclass(frozen=True)
class Ran:
    """The result of a hook or a check."""

    code: int
    output: str = ""
    passed: bool = True

    def as_data(self) -> dict[str, Any]:
        return {"code": self.code, "output": self.output}


def _readable(output: bytes) -> str:
    """Returns the end of a program's output, without control characters and secrets."""
    text = output[-4 * MOST_OUTPUT :].decode("utf-8", "replace")
    text = "".join(char for char in text if char.isprintable() or char in "\n\t")
    return _SECRET.sub(lambda found: (found[1] or found[2] or "") + "…", text)[-MOST_OUTPUT:]


def _as_user(name: str | None) -> dict[str, Any]:
    """Returns the options with which a program runs as the user and with the user's groups.

    Without these options, the program would run with the agent's groups."""
    if name is None:
        return {}
    user = pwd.getpwnam(name)
    if user.pw_uid == os.geteuid():
        return {}
    groups = os.getgrouplist(name, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}


def run_hook(hook: Hook, environment: Mapping[str, str], seconds: float) -> Ran:
    """Runs a hook without a shell, arguments or input.

    When the hook ends, all processes that it started are ended too."""
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **environment}
    # The operator of the host has named the program; the API only its name.
    process = subprocess.Popen(  # noqa: S603
        [hook.path],
        env=clean,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **_as_user(hook.user),
    )
    tail = bytearray()

    def read() -> None:
        # Only the end is kept: the program may print a gigabyte.
        assert process.stdout is not None
        while chunk := process.stdout.read(65536):
            tail.extend(chunk)
            del tail[: -4 * MOST_OUTPUT]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        code = process.wait(seconds)
        timed_out = False
    except subprocess.TimeoutExpired:
        timed_out, code = True, -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        # Also what it left in the background, which would keep the pipe open.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reader.join(5.0)
    said = _readable(bytes(tail))
    if timed_out:
        said = f"{said}\nended after {seconds:.0f} s"[-MOST_OUTPUT:]
    return Ran(code, said, code == 0)


def check_url(pool: urllib3.PoolManager, url: str, seconds: float, stopping: threading.Event) -> Ran:
    """Requests a page until the page answers 2xx, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        left, found = max(0.1, deadline - time.monotonic()), [Ran(0, "no answer in time", passed=False)]
        # In a thread, which a page that trickles leaves behind: the time-out of a socket is one for each read.
        asking = threading.Thread(target=_ask_page, args=(pool, url, left, found), daemon=True)
        asking.start()
        asking.join(left)
        if found[-1].passed or time.monotonic() + CHECK_PAUSE > deadline or stopping.wait(CHECK_PAUSE):
            return found[-1]


def _ask_page(pool: urllib3.PoolManager, url: str, seconds: float, found: list[Ran]) -> None:
    try:
        answer = pool.request("GET", url, redirect=False, retries=False, timeout=seconds, preload_content=False)
        body = answer.read(MOST_OUTPUT)
        answer.close()
        found.append(Ran(answer.status, _readable(body), 200 <= answer.status < 300))
    except (urllib3.exceptions.HTTPError, OSError) as error:
        found.append(Ran(0, f"no answer: {type(error).__name__}", passed=False))


# --- state


@dataclass(frozen=True)
class SwitchedFile:
    """One file that a switch puts in place: its new content, and the hidden file that has the replaced one.

    `aside` is None if no file was replaced. `link`, for a tree: the new and the previous target of its symlink; the
    previous target is None if there was no symlink."""

    file: GoalFile
    aside: tuple[str, str] | None = None
    link: tuple[str, str | None] | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SwitchedFile:
        pairs = {name: tuple(pair) for name in ("aside", "link") if (pair := data.get(name))}
        return cls(data["file"], **pairs)

    @property
    def hidden(self) -> HiddenFile | None:
        return HiddenFile(Path(self.aside[0]), self.aside[1]) if self.aside else None


@dataclass(frozen=True)
class State:
    """The journal's record of one release. `active` is the last revision that was put in place, or that failed here."""

    name: str
    # The last goal that the API gave.
    goal: Goal | None = None
    active: int = 0
    state: str = "current"
    reason: str | None = None
    staged: int = 0
    hook: dict[str, Any] | None = None
    health: dict[str, Any] | None = None
    drift: tuple[str, ...] = ()
    # The files in place, each with its metadata after the switch; their revision; when they were last checked. If only
    # that time has changed, neither the journal is written nor the API called. `left` of a file names the release that
    # has taken its path since.
    files: tuple[GoalFile, ...] = ()
    placed: int = 0
    checked_at: str | None = None
    # The switch that has begun and has not ended, and its goal.
    begun: tuple[SwitchedFile, ...] = ()
    begun_goal: Goal | None = None
    # The contents of former revisions, newest first.
    former: tuple[tuple[str, ...], ...] = ()
    # The last switch, as long as it can be undone: until its soak time has passed (Unix time), or it was undone.
    # `before` has the files that it replaced.
    soaks_until: float = 0.0
    soaking: tuple[SwitchedFile, ...] = ()
    before: tuple[GoalFile, ...] = ()
    placed_before: int = 0

    @classmethod
    def from_json(cls, text: str) -> State:
        names = {each.name for each in fields(cls)}
        # A newer agent, whose update was rolled back, may have written more fields.
        data = {name: value for name, value in json.loads(text).items() if name in names}
        # Journals of older agents lack this field. After a failure, the revision in place is unknown then.
        data.setdefault("placed", data["active"] if data["state"] == "current" else 0)
        data |= {name: tuple(map(SwitchedFile.from_json, data.get(name, ()))) for name in ("begun", "soaking")}
        data |= {name: tuple(data.get(name, ())) for name in ("drift", "files", "before")}
        return cls(**data | {"former": tuple(tuple(one) for one in data["former"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def goes_back(self) -> bool:
        """Whether a hook or a check failed, and not all replaced files are back yet."""
        return self.state == "failed" and bool(self.soaking)

    def report(self) -> dict[str, Any] | None:
        """Returns the report for the API; None if the host has nothing of the release."""
        placed = 0 if any(file.get("left") for file in self.files) else self.placed
        found: dict[str, Any] = {"drift": list(self.drift), "checked_at": self.checked_at if placed else None}
        if self.staged > self.active:
            state, revision, found = "staged", self.staged, found | {"placed": placed}
        elif self.active:
            state, revision = "drifted" if self.drift and self.state == "current" else self.state, self.active
            found |= {"reason": self.reason, "hook": self.hook, "health": self.health}
            found |= {"placed": placed if state == "failed" else None}
        else:
            return None
        return {"name": self.name, "revision": revision, "state": state} | {k: v for k, v in found.items() if v}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _heals(state: State) -> bool:
    """Returns whether changed files should be repaired.

    They should be if the goal asks for repairs and its revision is in place. A repair that failed is not tried
    again."""
    goal = state.goal
    is_here = goal is not None and (goal["revision"], "current") == (state.active, state.state)
    return bool(goal and goal["heal"] and state.drift and is_here)


def goes_first(name: str, owners: Callable[[str], set[str]], is_ready: Callable[[str], bool]) -> bool:
    """Returns whether a release may switch now, without waiting for the `owners` of the paths that it takes.

    It may if no other release has these paths. It also may if each owner waits for it in turn, because the releases
    swapped paths while the host was down. Then all of these releases must be ready, so that none loses its files before
    it gets its new ones."""

    def waited_for(one: str) -> set[str]:
        found: set[str] = set()
        left = {one}
        while left:
            left |= (more := owners(left.pop()) - found)
            found |= more
        return found

    circle = waited_for(name)
    return all(name in waited_for(owner) for owner in owners(name)) and all(map(is_ready, circle))


def _said(reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the reports without `checked_at`. A change of that time alone is not worth a call to the API."""
    return [{name: value for name, value in report.items() if name != "checked_at"} for report in reports]


def _name_of(file: GoalFile) -> str:
    return CURRENT if file.get("unpack") else str(file["file_name"])


def _led_to(directory: int) -> str | None:
    try:
        return os.readlink(CURRENT, dir_fd=directory)
    except OSError:
        return None


def _exists(place: Place) -> bool:
    try:
        os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class Refused(Exception):
    """The revision cannot be put in place on this host."""


@dataclass(eq=False)
class HostReleases:
    """The releases of one host: asks the API for goals and makes the host match them."""

    client: Client
    agent_id: str
    delivery: Delivery
    stopping: threading.Event
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    # Loopback ports on which checks may be made.
    check_ports: frozenset[int] = frozenset()
    # The rate at which the content in place is read again.
    check_rate: RateLimit | None = None
    # Directory and SHA-256 of files that were read and have other content.
    _suspects: set[tuple[str, str]] = field(default_factory=set)
    _look_at: float = 0.0
    # Whether the API must be asked now. Otherwise it is asked after `_ask_at`, if necessary.
    _was_told: bool = False
    _ask_at: float = 0.0
    # The last reports of this process.
    _reported: list[dict[str, Any]] = field(default_factory=list)
    # Contents that are not where a release needs them, though the host may have them elsewhere.
    _lacking: dict[str, set[str]] = field(default_factory=dict)
    # Contents that are on their way to this host, and until when they are not requested again.
    _coming: dict[str, float] = field(default_factory=dict)
    _states: dict[str, State] = field(default_factory=dict)
    _wake: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # By release and SHA-256: why the content of the current revision could not be delivered.
    _not_delivered: dict[tuple[str, str], tuple[Code, str]] = field(default_factory=dict)

    def load(self) -> None:
        self._states = {
            state.name: state for text in self.delivery.journal.releases() for state in [State.from_json(text)]
        }

    # --- for the other parts of the agent

    def told(self) -> str:
        """Returns a short hash of the last goals from the API.

        Polls send this hash, so that the API notices outdated goals."""
        with self._lock:
            goals = sorted((state.goal for state in self._states.values() if state.goal), key=lambda goal: goal["name"])
        hashed = hashlib.sha256()
        for part in (f"{goal['name']}={goal['revision']}{' hold' if goal['hold'] else ''}" for goal in goals):
            hashed.update(len(part.encode()).to_bytes(8, "big") + part.encode())
        return hashed.hexdigest()[:16]

    @property
    def allows(self) -> str | None:
        """The hooks and ports that releases may use, as the API gets them; "-" if there are none.

        The API refuses releases that need others. None if the text would be too long."""
        text = ",".join([*sorted(self.hooks), *(f":{port}" for port in sorted(self.check_ports))]) or "-"
        return text if len(text) <= 1000 else None

    def trigger(self, within: float = 0.0) -> None:
        """Makes the loop ask the API, at a random moment within this number of seconds.

        When the API notifies thousands of hosts, it sends a longer time."""
        if within <= 0:
            self._wake.set()
            return
        later = threading.Timer(random.uniform(0, within), self._wake.set)  # noqa: S311
        later.daemon = True
        later.start()

    def owner_of(self, file: Path, besides: str = "") -> str | None:
        """Returns the release that has this file; None if no release other than `besides` has it."""
        return next(iter(self._owners_of(file, besides)), None)

    def _owners_of(self, file: Path, besides: str) -> list[str]:
        """Returns the releases other than `besides` that put this file in place, or that would put it back.

        A release that still soaks would put the file back if it failed. Such releases are left out if another release
        has taken a path of `besides`, because `besides` does not wait for them."""
        with self._lock:
            states = list(self._states.values())
        was_taken = any(one.get("left") for state in states if state.name == besides for one in state.files)
        return [
            state.name
            for state in states
            if state.name != besides
            and any(self._takes(one, file) for one in (*state.files, *(() if was_taken else state.before)))
        ]

    def _takes(self, one: GoalFile, path: Path) -> bool:
        if one.get("left"):
            return False
        # Journals of older agents have no path without symlinks.
        written = self.delivery.fence.root.path / str(one["target_file_dir"]).lstrip("/") / _name_of(one)
        mine = Path(one.get("at") or written)
        return mine == path or bool(one.get("unpack") and mine.parent / RELEASES in path.parents)

    def _with_path(self, file: GoalFile) -> GoalFile:
        """Returns the file with its path on this host. In this path, all symlinks are resolved."""
        with self._place(file) as place:
            return file | {"at": os.fspath(place.path / _name_of(file))}

    def coming(self, transfer: Transfer, seconds: float = LONGEST_TRANSFER) -> None:
        """Notes that a transfer has begun. For `seconds`, the content of the transfer is not requested again."""
        if transfer.get("release"):
            self._coming[transfer["signature"]] = time.monotonic() + seconds

    def delivered(self, transfer: Transfer, error: Exception | None = None) -> None:
        """Notes that a transfer of a release has ended.

        The content is then on the host; if it is not, `error` says why."""
        self._coming.pop(transfer["signature"], None)
        if error is not None:
            self._not_delivered[transfer.get("release") or "", transfer["signature"]] = (code_of(error), str(error))
        else:
            for lacking in list(self._lacking.values()):
                lacking.discard(transfer["signature"])
        self.trigger()

    # --- the loop

    def run(self) -> None:
        backoff = Backoff(longest=300.0)
        pause, again = 0.0, ASK_AGAIN
        while not self.stopping.is_set():
            # Cleared only if it was seen: a trigger at the end of the pause is handled in the next turn.
            if self._wake.wait(pause):
                self._wake.clear()
                again, self._was_told = ASK_AGAIN, True
            if self.stopping.is_set():
                return
            try:
                if self._was_told or (self._needs_asking() and time.monotonic() >= self._ask_at):
                    self._round()
                    # Not earlier: a call that failed has to be repeated.
                    self._was_told = False
                    self._ask_at, again = time.monotonic() + again, min(2 * again, LONGEST_ASK_AGAIN)
                self._soak()
                if time.monotonic() >= self._look_at:
                    self._look_at = time.monotonic() + DRIFT_EVERY
                    self._look_for_drift()
                backoff.reset()
                pause = self._pause()
            except NotFound:
                # An API without releases.
                pause = 3600.0
            except TidegateError as error:
                pause = backoff.next()
                log.warning("asking for the goals of releases failed, next attempt in %.1f s: %s", pause, error)

    def _needs_asking(self) -> bool:
        """Returns whether to call the API.

        This is necessary if a goal is not reached, or if the API does not know the host's current state."""
        return _said(self._reports()) != self._reported or any(
            self._is_behind(state) or _heals(state) or state.begun or state.goes_back for state in self._states.values()
        )

    @staticmethod
    def _is_behind(state: State) -> bool:
        goal = state.goal
        # Staged content may be lost before it is put in place.
        return goal is not None and goal["revision"] > max(state.active, state.staged if goal["hold"] else 0)

    def _pause(self) -> float:
        now = time.time()
        if any(state.soaks_until > now for state in self._states.values()):
            return 5.0
        left = self._ask_at - time.monotonic()
        return min(max(0.1, left), DRIFT_EVERY) if self._needs_asking() else DRIFT_EVERY

    def _round(self) -> None:
        """Asks for goals, converges to them and reports, until there is nothing new to report."""
        self._finish_begun()
        for _ in range(5):
            if self.stopping.is_set():
                return
            now = time.monotonic()
            # Read before `_contents`: content that arrives in between must be in one of the two lists.
            coming = [signature for signature, until in list(self._coming.items()) if until > now]
            sent = (self._reports(), self._contents())
            goals = self.client.agents.ask(self.agent_id, sent[0][:MOST_REPORTS], sorted({*sent[1], *coming})[:2000])
            self._reported = _said(sent[0])
            self._note_goals(goals)
            # The host asks after each file that arrives; the files that are still on their way must not be sent again.
            self._coming |= {signature: now + ASK_AGAIN for goal in goals for signature in goal.get("sending", ())}
            for goal in goals:
                try:
                    self._converge(goal)
                except (JournalError, TidegateError):
                    raise
                except Exception as error:
                    # Any error is the result of this revision, as it is with transfers: the other releases go on.
                    log.exception("release %s: an error that was not foreseen", goal["name"])
                    state = self._states[goal["name"]]
                    self._undo(state.begun)
                    self._mark_left(state.name, state.files, taken=False)
                    self._fail(state, goal, f"{type(error).__name__}: {error}")
            if (self._reports(), self._contents()) == sent:
                return

    def _reports(self) -> list[dict[str, Any]]:
        return [report for state in self._states.values() if (report := state.report())]

    def _contents(self) -> list[str]:
        """Returns the SHA-256 of every release content that the host has, kept or in place."""
        kept = {signature for _, signature in self.delivery.journal.kept()}
        drifted = {file["signature"] for state in self._states.values() if state.drift for file in state.files}
        trees = {row.signature for row in self.delivery.journal.trees()} - drifted - {""}
        placed = {
            file["signature"]
            for state in self._states.values()
            for file in (*state.before, *(() if state.drift else state.files))
        }
        return sorted((kept | trees | placed).difference(*self._lacking.values()))[:2000]

    def _note_goals(self, goals: list[Goal]) -> None:
        wanted = {goal["name"]: goal for goal in goals}
        for name in list(self._states):
            if name not in wanted and not self._states[name].begun:
                # The release was deleted, or is no longer for this host. Its files stay.
                self._settle(self._states[name])
                self._forget(name)
        for name, goal in wanted.items():
            state = self._states.get(name) or State(name)
            if state.goal and state.goal["revision"] != goal["revision"]:
                # The same transfer may have been sent, and have failed, more than once.
                for key in [key for key in list(self._not_delivered) if key[0] == name]:
                    self._not_delivered.pop(key, None)
            self._save(replace(state, goal=goal))

    def _save(self, state: State) -> State:
        self.delivery.journal.save_release(state.name, state.to_json())
        with self._lock:
            self._states[state.name] = state
        return state

    def _forget(self, name: str) -> None:
        log.info("the release %s is no longer for this host; its files stay", name)
        self.delivery.journal.drop_release(name)
        with self._lock:
            self._states.pop(name)
        self._lacking.pop(name, None)
        self._prune()

    # --- converging

    def _converge(self, goal: Goal) -> None:
        state = self._states[goal["name"]]
        if goal["revision"] <= state.active and not _heals(state):
            return
        if goal["hold"] and state.staged == goal["revision"]:
            return
        state = self._settle(state)
        try:
            self._require_allowed(goal)
            self._require_paths(goal)
            for file in goal["files"]:
                code, message = self._not_delivered.pop((state.name, file["signature"]), (Code.DONE, ""))
                if code in HOPELESS:
                    raise Refused(f"{file['file_name']} cannot be brought to this host: {message}")
            # All contents, before they are looked up: `delivered` removes those that arrive meanwhile.
            told = self._lacking[state.name] = {file["signature"] for file in goal["files"]}
            lacking = {file["signature"] for file in goal["files"] if not self._has(file, goal["revision"])}
            told &= lacking
            if lacking:
                return
            if not (goal["hold"] or goes_first(state.name, self._owners, self._is_ready)):
                log.info("release %s: waits until others have left its paths: %s", state.name, self._owners(state.name))
                return
            plan = () if goal["hold"] else self._plan(goal)
        except Refused as error:
            self._lacking.pop(state.name, None)
            self._fail(state, goal, str(error))
            return
        if goal["hold"]:
            log.info("release %s: revision %d is staged", state.name, goal["revision"])
            self._save(replace(state, staged=goal["revision"]))
            return
        # All content is here. From now on, a restart finishes this revision.
        self._finish(self._save(replace(state, begun=plan, begun_goal=goal)), goal)

    def _require_allowed(self, goal: Goal) -> None:
        """Raises Refused if the host's operator did not allow the hook or the check.

        Called before anything is changed."""
        health = goal.get("health") or {}
        for name in filter(None, (goal.get("hook"), health.get("hook"))):
            if name not in self.hooks:
                raise Refused(f"this host allows no hook {name}: its agent was started without --allow-hook {name}=…")
        if url := health.get("url"):
            port = urllib3.util.parse_url(url).port or 80
            if port not in self.check_ports:
                raise Refused(f"this host allows no check on port {port}: start its agent with --allow-check {port}")

    def _require_paths(self, goal: Goal) -> None:
        """Raises Refused if another release has one of the paths, and either is to keep this path or could not leave
        it."""
        for file in goal["files"]:
            path = Path(self._with_path(file)["at"])
            for owner in self._owners_of(path, goal["name"]):
                state = self._states[owner]
                where = f"{file['target_file_dir'].rstrip('/')}/{_name_of(file)}"
                if state.goal is None or self._wants(state.goal, path):
                    raise Refused(f"the release {owner} has {where} on this host")
                if (state.state, state.active) == ("failed", state.goal["revision"]):
                    raise Refused(f"the release {owner} still has {where} here: its revision {state.active} failed")

    def _owners(self, name: str) -> set[str]:
        """Returns the other releases that have paths which this release is to take."""
        goal, found = self._states[name].goal, set[str]()
        for file in goal["files"] if goal else ():
            found |= {*self._owners_of(Path(self._with_path(file)["at"]), name)}
        return found

    def _is_ready(self, name: str) -> bool:
        """Returns whether the release could be switched now. Does not consider paths that other releases have."""
        state = self._states[name]
        goal = state.goal
        if goal is None or goal["hold"] or goal["revision"] <= state.active:
            return False
        try:
            self._require_allowed(goal)
            return all(self._has(file, goal["revision"]) for file in goal["files"])
        except Refused:
            return False

    def _mark_left(self, taker: str, files: Sequence[GoalFile], *, taken: bool) -> None:
        """Records in the other releases which of their paths the release `taker` has.

        If `taken`, it has taken the paths of `files`. If not, it goes back, and then it has only the paths of
        `files`."""

        def marked(one: GoalFile) -> GoalFile:
            if taken and any(self._takes(one, Path(file["at"])) for file in files):
                return one | {"left": taker}
            if not taken and one.get("left") == taker:
                back = {key: value for key, value in one.items() if key != "left"}
                return one if any(self._takes(back, Path(file["at"])) for file in files if file.get("at")) else back
            return one

        for state in list(self._states.values()):
            after = replace(state, files=tuple(map(marked, state.files)), before=tuple(map(marked, state.before)))
            if state.name != taker and after != state:
                self._save(after)

    def _wants(self, goal: Goal, path: Path) -> bool:
        for file in goal["files"]:
            with contextlib.suppress(Refused):
                if self._takes(self._with_path(file), path):
                    return True
        return False

    def _has(self, file: GoalFile, revision: int) -> bool:
        """Returns whether the host has the content of a file, kept or in place.

        An archive must be unpacked; if it is here and not unpacked yet, this unpacks it."""
        with self._place(file) as place:
            if not file.get("unpack"):
                return self.delivery.has_content_of(place, file["signature"], file["size"])
            with self._place_of_trees(file) as beside:
                return self._has_tree(file, place, beside) or self._unpack(file, place, beside, revision)

    # --- trees

    def _place_of_trees(self, file: GoalFile) -> contextlib.AbstractContextManager[Place]:
        return self._place(file | {"target_file_dir": f"{file['target_file_dir'].rstrip('/')}/{RELEASES}"})

    def _has_tree(self, file: GoalFile, place: Place, beside: Place) -> bool:
        """Returns whether the archive was unpacked before and nobody has changed the tree since."""
        journal = self.delivery.journal
        row = journal.tree(place.path, file["signature"])
        if row is None:
            return False
        changes = ["removed"]
        if move_into_place(beside, row):
            changes, _ = look(beside, row, from_blob(journal.entries_of(row)), read_all=True)
        if changes:
            log.warning("%s was changed, and is not used again: %s", row.path, changes[0])
            journal.disown_tree(row)
            # An earlier transfer found the tree here and downloaded nothing, so the archive must be requested again.
            self._coming.pop(file["signature"], None)
            self.trigger()
        return not changes

    def _unpack(self, file: GoalFile, place: Place, beside: Place, revision: int) -> bool:
        """Unpacks an archive, then deletes the archive.

        Returns False if the archive is not on this host. Raises Refused if it cannot be unpacked."""
        journal = self.delivery.journal
        kept = journal.kept_file(place.path, file["signature"])
        if kept is None:
            return False
        hidden = new_hidden(beside.path)
        with open_hidden(place.directory, kept) as part, self.delivery.partials.using(hidden.path):
            if part is None or not has_content(part.file, file["signature"], file["size"]):
                journal.drop_kept(place.path, file["signature"])
                return False
            path = beside.path / free_name(beside, revision)
            row = TreeRow(path, place.path, file["signature"], hidden, beside.owner[0])
            journal.part_opened(hidden, hidden.path)
            try:
                journal.keep_tree(row, to_blob(stage(beside, hidden, part.file, file["unpack"])))
                move_into_place(beside, row)
            except (OSError, RefusedArchive) as error:
                with contextlib.suppress(OSError):
                    remove_hidden(beside.directory, hidden)
                    journal.part_closed(hidden.path)
                    journal.drop_tree(row)
                raise Refused(f"{file['file_name']} cannot be unpacked: {error}") from error
        with contextlib.suppress(OSError):
            remove_hidden(place.directory, kept)
        journal.drop_kept(place.path, file["signature"])
        return True

    def _point(self, place: Place, target: str | None) -> None:
        """Makes the symlink `current` lead to `target`. If `target` is None, removes the symlink."""
        if leads_to(place) == target:
            return
        hidden = new_hidden(place.path)
        with self.delivery.partials.using(hidden.path), self.delivery.path_lock(place.path / CURRENT):
            # Recorded before it is created: a crash leaves no unknown file.
            self.delivery.journal.part_opened(hidden, hidden.path)
            point(place, target, hidden)
            self.delivery.journal.part_closed(hidden.path)

    @contextlib.contextmanager
    def _place(self, file: GoalFile) -> Iterator[Place]:
        """Opens the directory of a file on this host.
        Raises Refused if the host does not permit the directory or the user."""
        try:
            with self.delivery.place(cast(Transfer, {**file, "container_id": ""})) as place:
                yield place
        except Refused:
            raise
        except Exception as error:
            if isinstance(error, TidegateError) or code_of(error) is Code.INTERNAL:
                raise
            raise Refused(str(error)) from error

    def _fail(self, state: State, goal: Goal, reason: str, **more: Any) -> State:
        log.warning("release %s: revision %d failed on this host: %s", state.name, goal["revision"], reason)
        failed = {"active": goal["revision"], "state": "failed", "reason": reason[:1000], "staged": 0}
        over = {"begun": (), "begun_goal": None, "soaks_until": 0.0, "hook": None, "health": None}
        state = self._save(replace(state, **failed | over | more))
        self._prune()
        return state

    # --- the switch

    def _plan(self, goal: Goal) -> tuple[SwitchedFile, ...]:
        """Returns the files to put in place, each with the file that it replaces.

        Raises Refused if a file cannot be put in place."""
        plan = []
        for file in goal["files"]:
            with self._place(file) as place:
                if file.get("unpack"):
                    plan.append(SwitchedFile(file, link=self._link_of(file, place)))
                    continue
                aside = new_hidden(place.path)
                is_new = not _exists(place)
                plan.append(SwitchedFile(file, None if is_new else (os.fspath(aside.path), aside.secret)))
        return tuple(plan)

    def _link_of(self, file: GoalFile, place: Place) -> tuple[str, str | None]:
        row, former = self.delivery.journal.tree(place.path, file["signature"]), leads_to(place)
        if former == "":
            raise Refused(f"{CURRENT} in {place.path} is not a symlink: move it away first")
        if row is None:
            raise Refused(f"the tree of {file['file_name']} was removed by another process")
        return f"{RELEASES}/{row.path.name}", former

    def _finish_begun(self) -> None:
        for state in list(self._states.values()):
            if state.begun_goal is not None:
                log.info(
                    "release %s: revision %d is finished after a restart", state.name, state.begun_goal["revision"]
                )
                self._finish(state, state.begun_goal)
            elif state.goes_back:
                self._go_back(state)

    def _finish(self, state: State, goal: Goal) -> None:
        try:
            contents = [(one.file["target_file_dir"], one.file["signature"]) for one in state.begun]
            for number, one in enumerate(state.begun, 1):
                self._put(one, needed_again=contents[number - 1] in contents[number:])
            files = [self._with_path(one.file) for one in state.begun]
        except (OSError, Refused) as error:
            self._undo(state.begun)
            self._mark_left(state.name, state.files, taken=False)
            self._fail(state, goal, f"the files could not be put in place: {error}")
            return
        environment = self._environment(state, goal, "activate")
        hook = self._run_named(goal.get("hook"), environment, HOOK_SECONDS)
        health = self._check(goal, environment) if hook is None or hook.passed else None
        failed = next((ran for ran in (hook, health) if ran is not None and not ran.passed), None)
        # A rollback is not undone, even if its check fails: it replaced the revision that was rejected.
        is_rollback, reason = bool(goal.get("rollback_to")), None
        ran: dict[str, Any] = {"hook": hook.as_data() if hook else None, "health": health.as_data() if health else None}
        before: dict[str, Any] = {"soaking": state.begun, "before": state.files, "placed_before": state.placed}
        if failed is not None:
            if self.stopping.is_set():
                # The result is unknown: the stop of the agent has ended the hook. The next start finishes the switch.
                return
            reason = f"the {'hook' if failed is hook else 'health check'} failed with {failed.code}"
            if not is_rollback:
                # Recorded first: after a kill, the next start finishes the rollback.
                self._go_back(self._fail(state, goal, reason, **before, **ran))
                return
            log.warning("release %s: %s after the rollback to revision %d", state.name, reason, goal["rollback_to"])
        soak = 0.0 if is_rollback else float((goal.get("health") or {}).get("soak_s") or 0)
        done = replace(
            state,
            active=goal["revision"],
            state="failed" if failed else "current",
            reason=reason,
            staged=0,
            drift=(),
            files=tuple(file | {"stat": self._stat(file)} for file in files),
            placed=goal["revision"],
            checked_at=_now(),
            begun=(),
            begun_goal=None,
            soaks_until=time.time() + soak if soak else 0.0,
            **before,
            **ran,
        )
        self._mark_left(state.name, files, taken=True)
        self._save(done if soak else self._settled(done))
        log.info("release %s: revision %d is in place", state.name, goal["revision"])
        if not soak:
            self._prune()

    def _put(self, one: SwitchedFile, *, needed_again: bool) -> None:
        """Puts one file in place and keeps the replaced one under its hidden name.

        Does nothing if the new file is already in place. `needed_again`: another file of the same directory has the
        same content, so a copy of the kept content is used."""
        file = one.file
        if one.link is not None:
            with self._place(file) as place:
                if not stat.S_ISDIR(os.stat(one.link[0], dir_fd=place.directory, follow_symlinks=False).st_mode):
                    raise Refused(f"{one.link[0]} in {place.path} was replaced by another process")
                self._point(place, one.link[0])
            return
        with self._place(file) as place, self.delivery.path_lock(place.file):
            mode = mode_of(cast(Transfer, file))
            if place.is_done(file["signature"], file["size"], mode):
                return
            if one.hidden is not None:
                self._set_aside(place, one.hidden)
            if needed_again or not self._put_kept(place, file, mode):
                self._put_copy(place, file, mode)

    def _put_kept(self, place: Place, file: GoalFile, mode: int | None) -> bool:
        """Puts the kept content in place. Returns False if no content is kept, or if somebody could have changed it."""
        kept = self.delivery.journal.kept_file(place.path, file["signature"])
        if kept is None:
            return False
        with open_hidden(place.directory, kept) as part:
            if part is None or not has_content(part.file, file["signature"], file["size"]):
                return False
            if os.fstat(part.file.fileno()).st_uid not in (os.geteuid(), place.owner[0]):
                # Its former owner may have it open for writing.
                return False
            place.finish(part.file, mode)
            place.rename(part)
        with contextlib.suppress(OSError):
            remove_hidden(place.directory, kept)
        self.delivery.journal.drop_kept(place.path, file["signature"])
        return True

    def _put_copy(self, place: Place, file: GoalFile, mode: int | None) -> None:
        """Puts a copy of the content in place.

        The copy is made from the file in place, or else from the kept content."""
        kept = self.delivery.journal.kept_file(place.path, file["signature"])
        with self.delivery.partials.opened(place, ("release", file["signature"])) as fresh:
            try:
                copied = place.copy_existing(fresh.file, file["signature"], file["size"])
                if not copied and kept is not None:
                    with open_hidden(place.directory, kept) as part:
                        copied = part is not None and copy_verified(
                            part.file, fresh.file, file["signature"], file["size"]
                        )
                if not copied:
                    raise Refused(f"the content of {file['file_name']} was removed or changed by another process")
                place.finish(fresh.file, mode)
                place.rename(fresh)
            finally:
                self.delivery.partials.discard(place, fresh)

    @staticmethod
    def _set_aside(place: Place, hidden: HiddenFile) -> None:
        """Gives the file in place a second, hidden name, so that the file survives its replacement."""
        with open_hidden(place.directory, hidden) as before:
            if before is not None:
                return
        try:
            found = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{place.name} in {place.path} is not a regular file")
        with contextlib.suppress(OSError):
            remove_hidden(place.directory, hidden)
        link_hidden(place.directory, hidden, place.name)

    def _undo(self, switched: Sequence[SwitchedFile]) -> None:
        """Puts the replaced files back. Files that the switch added are deleted."""
        for one in reversed(switched):
            try:
                with self._place(one.file) as place, self.delivery.path_lock(place.file):
                    self._bring_back(place, one)
            except (OSError, Refused) as error:
                log.warning("what was there before %s cannot be brought back: %s", one.file["file_name"], error)

    def _bring_back(self, place: Place, one: SwitchedFile) -> None:
        if one.link is not None:
            if leads_to(place) == one.link[0]:
                self._point(place, one.link[1])
            return
        if one.hidden is None:
            if place.holds(one.file["signature"], one.file["size"]):
                os.unlink(place.name, dir_fd=place.directory)
            return
        directory = one.hidden.path.name
        # Without an aside, the file was never replaced.
        with contextlib.suppress(FileNotFoundError):
            former = f"{directory}/{one.hidden.secret}"
            os.rename(former, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
        with contextlib.suppress(OSError):
            os.rmdir(directory, dir_fd=place.directory)
        os.fsync(place.directory)

    def _keep_asides(self, switched: Sequence[SwitchedFile]) -> None:
        """Turns the replaced files into kept content, which later revisions find by SHA-256."""
        for one in switched:
            if one.hidden is None:
                continue
            with contextlib.suppress(OSError, Refused), self._place(one.file) as place:
                with open_hidden(place.directory, one.hidden) as part:
                    if part is None:
                        continue
                    digest = sha256_of_stream(part.file)
                if digest == one.file["signature"]:
                    remove_hidden(place.directory, one.hidden)
                    continue
                # After a kill, the kept file may be this very file, or one that is in use already.
                kept = self.delivery.journal.kept_file(place.path, digest)
                self.delivery.journal.keep(place.path, digest, one.hidden)
                if kept not in (None, one.hidden):
                    remove_hidden(place.directory, kept)

    def _prune(self) -> None:
        """Deletes kept content that no release needs any more."""
        wanted = set()
        for state in self._states.values():
            wanted |= {signature for former in state.former for signature in former}
            wanted |= {file["signature"] for goal in (state.goal, state.begun_goal) if goal for file in goal["files"]}
            wanted |= {file["signature"] for file in (*state.files, *state.before)}
        self._prune_trees(wanted)
        for directory, signature in self.delivery.journal.kept():
            if signature not in wanted or self.delivery.journal.tree(directory, signature):
                hidden = self.delivery.journal.kept_file(directory, signature)
                with contextlib.suppress(OSError):
                    if hidden is not None:
                        self.delivery.fence.remove(hidden)
                    self.delivery.journal.drop_kept(directory, signature)

    def _prune_trees(self, wanted: set[str]) -> None:
        journal, fence = self.delivery.journal, self.delivery.fence
        for row in journal.trees():
            if row.signature in wanted:
                continue
            try:
                with fence.reopened(row.directory) as directory:
                    if _led_to(directory) == f"{RELEASES}/{row.path.name}":
                        continue
                with fence.reopened(row.path.parent) as beside:
                    remove_hidden(beside, row.hidden)
                    remove_below(beside, row.path.name, (os.geteuid(), row.uid))
            except (OSError, RefusedPath) as error:
                if not isinstance(error, FileNotFoundError):
                    log.warning("the former tree %s cannot be removed: %s", row.path, error)
            journal.drop_tree(row)

    # --- hooks and checks

    def _environment(self, state: State, goal: Goal, event: str) -> dict[str, str]:
        return {
            "TIDEGATE_RELEASE": state.name,
            "TIDEGATE_REVISION": str(goal["revision"]),
            "TIDEGATE_PREVIOUS": str(state.placed_before if state.soaking else state.placed),
            "TIDEGATE_DIR": goal["files"][0]["target_file_dir"],
            "TIDEGATE_EVENT": event,
        }

    def _run_named(self, name: str | None, environment: Mapping[str, str], seconds: float) -> Ran | None:
        if name is None:
            return None
        try:
            return run_hook(self.hooks[name], environment, seconds)
        except (OSError, subprocess.SubprocessError, KeyError) as error:
            return Ran(-1, f"{name} could not be started: {error}", passed=False)

    def _check(self, goal: Goal, environment: Mapping[str, str]) -> Ran | None:
        health = goal.get("health")
        if not health:
            return None
        seconds = float(health["timeout_s"])
        if health.get("hook"):
            return self._run_named(health["hook"], environment, seconds)
        return check_url(self.delivery.pool, health["url"], seconds, self.stopping)

    def _soak(self) -> None:
        """Repeats the health check while a revision soaks. Rolls back if the check fails."""
        for state in list(self._states.values()):
            goal, now = state.goal, time.time()
            if state.soaks_until <= now:
                waiting = (one.goal and one.goal["revision"] > one.active for one in self._states.values())
                if self._settle(state) is not state and any(waiting):
                    # Another release may have waited for a path to which this one could have gone back.
                    self.trigger()
                continue
            if goal is None or goal["revision"] != state.active:
                continue
            longest = float((goal.get("health") or {}).get("soak_s") or 0)
            if state.soaks_until > now + longest:
                # The host's clock was set back.
                state = self._save(replace(state, soaks_until=now + longest))
            ran = self._check(goal, self._environment(state, goal, "activate"))
            if ran is None or ran.passed or self.stopping.is_set():
                continue
            said = {"hook": state.hook, "health": ran.as_data(), "drift": ()}
            self._go_back(self._fail(state, goal, "it was no longer healthy", **said))
            self.trigger()

    def _go_back(self, state: State) -> None:
        self._undo(state.soaking)
        self._mark_left(state.name, state.before, taken=False)
        goal = state.goal
        if goal is not None and goal["revision"] == state.active:
            ran = self._run_named(goal.get("hook"), self._environment(state, goal, "rollback"), HOOK_SECONDS)
            if ran is not None and not ran.passed and self.stopping.is_set():
                return
        self._save(
            replace(state, files=state.before, placed=state.placed_before, soaking=(), before=(), placed_before=0)
        )
        self._prune()

    def _settle(self, state: State) -> State:
        """Ends the time in which the last switch can be undone."""
        if not state.soaking or state.goes_back:
            return state
        state = self._save(self._settled(state))
        self._prune()
        return state

    def _settled(self, state: State) -> State:
        """Turns the replaced files into kept content. Returns the state of the release after that."""
        self._keep_asides(state.soaking)
        former = state.former
        if state.before and state.placed_before != state.active:
            keep = state.goal["keep"] if state.goal else 1
            former = (tuple(file["signature"] for file in state.before), *former[: max(0, keep - 1)])
        return replace(state, former=former, soaking=(), before=(), placed_before=0, soaks_until=0.0)

    # --- drift

    def _stat(self, file: GoalFile) -> list[int] | None:
        try:
            with self._place(file) as place:
                found = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
        except (OSError, Refused):
            return None
        return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_uid, found.st_gid, found.st_mode]

    def _look_for_drift(self) -> None:
        """Notes the files that somebody has changed, removed or replaced since they were put in place."""
        for state in list(self._states.values()):
            if state.state != "current" or not state.files:
                continue
            drift: list[str] = []
            files: list[GoalFile] = []
            for file in state.files:
                if file.get("left"):
                    files.append(file)
                    continue
                suspect = (file["target_file_dir"], file["signature"]) in self._suspects
                self._suspects.discard((file["target_file_dir"], file["signature"]))
                if file.get("unpack"):
                    drift += self._drift_of_tree(file, read_all=suspect)
                    files.append(file)
                    continue
                now = self._stat(file)
                if (suspect or now != file.get("stat")) and (said := self._drift_of(file, now)):
                    drift.append(f"{file['target_file_dir'].rstrip('/')}/{file['file_name']}: {said}"[:1200])
                    now = file.get("stat")
                files.append(file | {"stat": now})
            found = tuple(drift[:MOST_DRIFT])
            with self._lock:
                self._states[state.name] = checked = replace(state, checked_at=_now())
            if (found, tuple(files)) != (state.drift, state.files):
                changed = found != state.drift
                self._save(replace(checked, drift=found, files=tuple(files)))
                if changed:
                    log.warning(
                        "release %s: %s", state.name, "; ".join(found) or "its files are as they should be again"
                    )
                    self.trigger()

    def _drift_of(self, file: GoalFile, now: list[int] | None) -> str:
        """Says what has changed about a file. Returns "" if only the times of the file have changed."""
        if now is None:
            return "removed, or in a directory that was replaced"
        before = file.get("stat")
        try:
            with self._place(file) as place:
                if not place.holds(file["signature"], file["size"]):
                    return "its content was changed"
        except Refused as error:
            return str(error)
        if before is not None and now[4:] != before[4:]:
            return f"owner or mode were changed: uid {now[4]}, gid {now[5]}, mode {stat.S_IMODE(now[6]):04o}"
        return ""

    def _drift_of_tree(self, file: GoalFile, *, read_all: bool) -> list[str]:
        where = f"{file['target_file_dir'].rstrip('/')}/{CURRENT}"
        journal = self.delivery.journal
        try:
            with self._place(file) as place, self._place_of_trees(file) as beside:
                row = journal.tree(place.path, file["signature"])
                if row is None or leads_to(place) != f"{RELEASES}/{row.path.name}":
                    return [f"{where}: leads elsewhere"]
                entries = from_blob(journal.entries_of(row))
                changes, renewed = look(beside, row, entries, read_all=read_all)
                if renewed:
                    journal.keep_tree(row, to_blob(entries))
        except (OSError, Refused) as error:
            return [f"{where}: {error}"[:1200]]
        return [f"{where}/{change}"[:1200] for change in changes]

    def check_contents(self) -> None:
        """Reads all files in place again and again, at the rate of `--check-rate`.

        Marks the files with wrong content."""
        while self.check_rate is not None and not self.stopping.wait(READ_EVERY):
            with self._lock:
                files = [file for state in self._states.values() if state.state == "current" for file in state.files]
            for file in files:
                with contextlib.suppress(OSError, Refused):
                    if not self._reads_right(file) and not self.stopping.is_set():
                        self._suspects.add((file["target_file_dir"], file["signature"]))

    def _reads_right(self, file: GoalFile) -> bool:
        def throttle(count: int) -> None:
            if self.check_rate is not None:
                self.check_rate.take(count, self.stopping.is_set)

        with self._place(file) as place:
            if not file.get("unpack"):
                with place.existing() as found:
                    return found is not None and has_content(found, file["signature"], file["size"], throttle)
            row = self.delivery.journal.tree(place.path, file["signature"])
            with self._place_of_trees(file) as beside:
                entries = from_blob(self.delivery.journal.entries_of(row)) if row else []
                return row is not None and not look(beside, row, entries, read_all=True, throttle=throttle)[0]
