"""agent: the daemon on a target host"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import signal
import sys
from pathlib import Path

from tidegate_client.cli.context import Context, Subparsers, add_command
from tidegate_client.cli.exits import Exit, exit_for
from tidegate_client.config import state_path
from tidegate_client.errors import UsageError


def register(subparsers: Subparsers) -> None:
    agent = add_command(
        subparsers, "agent", _agent, "receive files on this host; SIGTERM drains, a second one stops at once"
    )
    agent.add_argument("--agent-id", required=True)
    agent.add_argument("--root", type=Path, required=True, help="every file goes beneath this directory")
    agent.add_argument("--container-root", type=Path, metavar="DIR", help="files for container C go beneath DIR/C")
    agent.add_argument("--parallel", type=_positive, default=4, metavar="N", help="downloads at once (default 4)")
    agent.add_argument("--state-dir", type=Path, help="where untold results survive a crash (default: XDG state)")
    agent.add_argument("--wait", type=int, default=20, choices=range(21), metavar="0-20", help="long-poll seconds")
    agent.add_argument("--drain-seconds", type=float, default=30.0, metavar="S", help="how long SIGTERM lets them run")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def _agent(context: Context, args: argparse.Namespace) -> Exit | None:
    # Imported here: the daemon needs a Unix, the rest of the command does not.
    from tidegate_client.agent.daemon import Agent, AgentOptions

    if not args.root.is_dir():
        raise UsageError(f"--root {args.root} is not a directory")
    _log_to_stderr(as_json=context.output.as_json)
    options = AgentOptions(
        agent_id=args.agent_id,
        root=args.root.resolve(),
        container_root=args.container_root and args.container_root.resolve(),
        state_dir=args.state_dir or _state_dir(context, args),
        parallel=args.parallel,
        wait=args.wait,
        drain_seconds=args.drain_seconds,
    )
    # The agent backs off by itself, and for longer than a single call would.
    agent = Agent(context.client_with(attempts=0), options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    agent.run()
    if agent.failure:
        context.output.error(agent.failure)
        return exit_for(agent.failure)
    return None


def _state_dir(context: Context, args: argparse.Namespace) -> Path:
    """One journal for each agent, API and root: results of one must never be told to another."""
    told = f"{context.config.required_url()}\n{args.root.resolve()}\n{args.agent_id}"
    return state_path() / "agents" / hashlib.sha256(told.encode()).hexdigest()[:16]


def _log_to_stderr(*, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("tidegate.agent")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname, "message": record.getMessage()}
        return json.dumps(line, ensure_ascii=False)
