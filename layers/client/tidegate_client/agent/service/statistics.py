"""Counters of the agent, and their output for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

Labels = tuple[tuple[str, str], ...]
HELP = {
    "transfers_total": "Transfers that ended, by result.",
    "received_bytes_total": "Bytes downloaded.",
    "polls_total": "Polls of the inbox, by result.",
    "thread_restarts_total": "Threads that failed and were restarted.",
    "stalls_total": "Downloads postponed because no byte was received.",
    "active_transfers": "Transfers that wait or run.",
    "untold_results": "Results that the API has not accepted yet.",
    "partial_bytes": "Bytes in part files.",
    "free_bytes": "Free bytes on the root's file system; -1 if the root cannot be read.",
    "seconds_since_last_poll": "Seconds since the API last answered a poll; -1 if it never did.",
    "connected": "1 while the WebSocket to the API is open.",
    "healthy": "1 if there are no problems; /healthz names them.",
}


class Statistics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Labels]] = Counter()

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += amount

    def counts(self) -> dict[tuple[str, Labels], float]:
        with self._lock:
            return dict(self._counts)


def prometheus_text(samples: Mapping[tuple[str, Labels], float]) -> str:
    """The text exposition format, version 0.0.4."""
    lines: list[str] = []
    for name in sorted({name for name, _ in samples}):
        full = f"tidegate_agent_{name}"
        lines.append(f"# HELP {full} {HELP[name]}")
        lines.append(f"# TYPE {full} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{full}{_labels(labels)} {value}" for (of, labels), value in sorted(samples.items()) if of == name]
    return "\n".join(lines) + "\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
