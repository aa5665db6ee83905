"""Shows records while they change, each kind on one line."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tidegate_client.cli.context import Context, Exit
from tidegate_client.cli.output import Live, Output, Speed, bar, human_bytes, human_seconds
from tidegate_client.errors import printable
from tidegate_client.records import ENDED, Change, Record
from tidegate_client.watching import Watch


def follow(
    context: Context, record_ids: Sequence[str], *, use_socket: bool = True, known: Mapping[str, Record] | None = None
) -> Exit:
    """Shows the records until all have ended. Returns exit code 0 if all succeeded, else 1."""
    watch = Watch(
        context.client,
        record_ids,
        ws_url=context.config.ws_url,
        use_socket=use_socket,
        timeout=context.args.timeout,
        known=known,
        on_fallback=lambda reason: context.output.note(f"polling, because the WebSocket cannot be used: {reason}"),
    )
    ends: list[bool] = []
    with contextlib.closing(Overview(context.output, len(set(record_ids)))) as overview:
        for change in watch:
            overview.show(change)
            if change.ended:
                ends.append(change.succeeded)
    return Exit.OK if all(ends) else Exit.FAILED


class Overview:
    """Shows the progress of several records. Each failure gets a line of its own.

    If the terminal has room, each record has a line. Otherwise, a summary shows the number of records in each state."""

    def __init__(self, output: Output, count: int) -> None:
        self._output = output
        self._count = count
        self._live = Live(output)
        self._states: dict[str, str] = {}
        # The last record of each, and its speed, for the lines that are redrawn.
        self._records: dict[str, Record] = {}
        self._speeds: dict[str, Speed] = defaultdict(Speed)
        self._began = time.monotonic()

    def show(self, change: Change) -> None:
        is_new = self._states.get(change.record_id) != change.status
        self._states[change.record_id] = change.status
        if self._output.as_json:
            self._output.event({"id": change.record_id, **change.record}, "")
            return
        self._records[change.record_id] = change.record
        if self._count == 1 or self._live.holds(self._count):
            elapsed = time.monotonic() - self._began
            lines = []
            for name, record in self._records.items():
                going = self._states[name].lower() not in ENDED
                speed = self._speeds[name].at(elapsed, _bytes_of(record)) if going else None
                lines.append(line_of(record, elapsed if going or self._count == 1 else None, speed))
            self._live.show("\n".join(lines), important=is_new)
            return
        if change.ended and not change.succeeded:
            self._live.print_line(line_of(change.record))
        states = Counter(self._states.values())
        ended = sum(1 for state in self._states.values() if state.lower() in ENDED)
        summary = "  ".join(f"{state} {count}" for state, count in sorted(states.items()))
        # Without a terminal, a line for each of a thousand records would be too much: only the last is always printed.
        self._live.show(f"{bar(ended / self._count)} {ended}/{self._count}  {summary}", important=ended == self._count)

    def close(self) -> None:
        self._live.close()


def line_of(record: Record, elapsed: float | None = None, speed: float | None = None) -> str:
    """Returns a record of any kind as one line; `speed` is in bytes a second."""
    name = _where(record) or record.get("name") or record.get("file_name") or record.get("type") or ""
    parts = [part for part in (str(name), _progress_text(record, speed), str(record.get("status", ""))) if part]
    error = record.get("error")
    reasons = (
        record.get("error_msg"),
        record.get("failed_reason"),
        record.get("stop_reason"),
        error.get("detail") if isinstance(error, dict) else error,
        record.get("last_wait_reason"),
    )
    parts += [str(reason) for reason in reasons if reason][:1]
    if elapsed is not None:
        parts.append(human_seconds(elapsed))
    # One line, whatever a host or a source said.
    return printable("  ".join(parts))


def _where(record: Record) -> str:
    """Returns where a target or its Task puts the file: the host and the path on that host."""
    host = record.get("target_agent_id")
    if not host or not record.get("file_name"):
        return ""
    container = record.get("target_container_id") or record.get("container_id")
    directory = str(record.get("target_file_dir") or "").rstrip("/")
    path = f"{directory}/{record['file_name']}" if directory else str(record["file_name"])
    return f"{host}:{container}:{path}" if container else f"{host}:{path}"


def _progress_text(record: Record, speed: float | None) -> str:
    if counts := record.get("counts"):
        ended = sum(counts.get(state, 0) for state in ("success", "failed", "timeout", "cancelled", "superseded"))
        total = counts.get("total", 0)
        summary = "  ".join(f"{state} {count}" for state, count in counts.items() if count and state != "total")
        return f"{bar(ended / total if total else 0)} {ended}/{total}  {summary}".rstrip()
    progress = record.get("progress")
    if not isinstance(progress, dict):
        return f"{progress} %" if isinstance(progress, (int, float)) else ""
    if _bytes_of(record) is not None:
        return _byte_progress(progress, speed if record.get("status") == "running" else None)
    return _item_progress(progress, str(record.get("status")))


def _bytes_of(record: Record) -> int | None:
    """Returns the bytes received so far; None if this record's progress is not counted in bytes."""
    progress = record.get("progress")
    done = progress.get("bytes") if isinstance(progress, dict) else None
    return done if isinstance(done, int) else None


def _byte_progress(progress: Record, speed: float | None) -> str:
    done, total = int(progress["bytes"]), progress.get("total")
    parts = [f"{progress['files']} files"] if "files" in progress else []
    parts.append(f"{bar(done / total)} {done * 100 // total:3d} %" if total else "")
    parts.append(f"{human_bytes(done)} of {human_bytes(total)}" if total else human_bytes(done))
    if progress.get("step"):
        parts.append(str(progress["step"]))
    elif speed:
        parts.append(f"{human_bytes(speed)}/s")
        parts.append(f"{human_seconds((total - done) / speed)} left" if total and done < total else "")
    return "  ".join(part for part in parts if part)


def _item_progress(progress: Record, status: str) -> str:
    if "new" in progress:
        return f"{progress.get('queued', 0)} of {progress['new']} new files queued"
    total = progress.get("total")
    done = int(progress.get("rows", progress.get("processed")) or 0)
    parts = [f"{bar(done / total)} {done * 100 // total:3d} %  {done}/{total}" if total else f"{done}"]
    if (rate := progress.get("rate_now")) and status == "running":
        parts.append(f"{rate:.0f}/s")
        if total:
            parts.append(f"{human_seconds((total - done) / rate)} left")
    if errors := progress.get("errors"):
        parts.append(f"errors {errors}")
    return "  ".join(parts)
