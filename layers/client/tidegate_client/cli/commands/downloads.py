"""The commands distribute (submit, status, watch, list) and job (show, list, note, cancel, redrive)."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate_client.cli.commands.fleet import label
from tidegate_client.cli.context import (
    Context,
    Exit,
    Group,
    Subparsers,
    add_paging,
    add_timeout,
    add_watch,
    given_of,
    rate,
)
from tidegate_client.cli.views import follow, line_of
from tidegate_client.errors import UsageError
from tidegate_client.models import DownloadOptions, Target, Wave
from tidegate_client.resources.downloads import TARGETS_A_CALL, Jobs
from tidegate_client.resources.paging import walk

TASK_COLUMNS = ("task_id", "target_agent_id", "target_container_id", "status", "error_code", "error_msg", "update_time")


def register(subparsers: Subparsers) -> None:
    download = Group(
        subparsers,
        "distribute",
        "send a file of the library to hosts",
        lambda client: client.downloads,
        "task",
        old="download",
    )
    submit = download.command("submit", _submit, "send a file to one or more hosts")
    submit.add_argument("--file", metavar="FILE_ID", help="a file of the library; sets the five options below")
    submit.add_argument("--biz-id", type=int)
    submit.add_argument("--app-id", type=int)
    submit.add_argument("--file-path")
    submit.add_argument("--file-name")
    submit.add_argument("--signature", help="SHA-256 of the content, 64 hex digits")
    submit.add_argument(
        "--target", action="append", type=_target, metavar="AGENT[:CONTAINER]", help="a host (repeatable)"
    )
    submit.add_argument("--group", action="append", metavar="NAME", help="the hosts now in this group (repeatable)")
    submit.add_argument(
        "--label", action="append", type=label, metavar="NAME=VALUE", help="the hosts with this label (repeatable)"
    )
    submit.add_argument(
        "--wave",
        action="append",
        type=_wave,
        metavar="PERCENT[:WAIT[:MAX_FAILED]]",
        help="send to PERCENT of the hosts first; continue after WAIT seconds if at most MAX_FAILED percent failed "
        "(repeatable)",
    )
    submit.add_argument("--user", required=True, help="owner of the file on the host")
    submit.add_argument("--dir", required=True, help="directory on the host, as an absolute path")
    submit.add_argument(
        "--mode",
        metavar="OCTAL",
        help="permissions of the file, as in 0640 (default: those of the file it replaces, else 0644)",
    )
    submit.add_argument(
        "--limit-rate", type=rate, metavar="RATE", help="bytes a second on each host for this Job, as in 500K or 10M"
    )
    submit.add_argument(
        "--activate-at",
        metavar="TIME",
        help="fetch it now and put it in place at TIME on all hosts, as 2026-12-24T18:00:00Z (at most 7 days ahead)",
    )
    submit.add_argument("--force", action="store_true", help="replace the file also where a release has it")
    submit.add_argument("--note", metavar="TEXT", help="a remark for people, at most 500 characters")
    submit.add_argument("--callback", metavar="URL", help="called when it ends")
    add_watch(submit)

    status = download.command("status", _status, "show a Task")
    status.add_argument("task", help="the id of the Task, or the UUID at its end")

    watch = download.command("watch", _watch, "show Tasks until they end")
    watch.add_argument("task", nargs="+")
    watch.add_argument("--poll", action="store_true", help="do not use the WebSocket")
    add_timeout(watch)

    listing = download.command("list", _list, "list Tasks, newest first")
    listing.add_argument("--job", metavar="JOB_ID")
    listing.add_argument("--status")
    add_paging(listing)

    job = Group(
        subparsers, "job", "Jobs: one file in one window, for all its targets", lambda client: client.jobs, "job"
    )
    show = job.command("show", _show_job, "show a Job and its targets")
    show.add_argument("job")
    show.add_argument("--status", help="only targets with this status")
    add_watch(show)
    note = job.command("note", _note, "change the note of a Job")
    note.add_argument("job")
    note.add_argument("note", metavar="TEXT", help="at most 500 characters; '' removes it")
    job.call("cancel", Jobs.cancel, "cancel a Job; files that have arrived stay")
    redrive = job.command("redrive", _redrive, "start a new Job for the targets that failed")
    redrive.add_argument("job")
    redrive.add_argument(
        "--status",
        action="append",
        choices=("Failed", "Timeout", "Cancelled", "Superseded"),
        help="repeatable (default Failed, Timeout)",
    )
    redrive.add_argument(
        "--force", action="store_true", help="also to hosts to which a newer Job sent content: replaces the newer"
    )
    add_watch(redrive, "show the new Job until it ends")
    job.pages(
        "list",
        Jobs.list,
        ("job_id", "status", "file_name", "create_time", "finish_time", "counts"),
        "list Jobs, newest first",
        biz_id={"type": int},
        app_id={"type": int},
        file_path={},
        status={},
    )


def _target(text: str) -> Target:
    agent_id, _, container_id = text.partition(":")
    if not agent_id:
        raise argparse.ArgumentTypeError(f"{text!r} is neither AGENT nor AGENT:CONTAINER")
    return {"agent_id": agent_id, "container_id": container_id}


def _wave(text: str) -> Wave:
    parts = text.split(":")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not PERCENT, PERCENT:WAIT or PERCENT:WAIT:MAX_FAILED")
    percent, wait, failed = [*map(int, parts), 0, 0][:3]
    return {"percent": percent, "wait_s": wait, "max_failed_percent": failed}


def _file_and_place(context: Context, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields that name the file and its path on the hosts. Both submit calls have these fields."""
    wanted: dict[str, Any] = {
        "biz_id": args.biz_id,
        "app_id": args.app_id,
        "file_path": args.file_path,
        "file_name": args.file_name,
        "file_signature": args.signature,
    }
    if args.file:
        record = context.client.files.get(args.file)
        stored: dict[str, Any] = {"file_signature": record.get("signature")}
        stored |= {name: record.get(name) for name in ("biz_id", "app_id", "file_path", "file_name")}
        wanted = {name: value if value is not None else stored[name] for name, value in wanted.items()}
    if missing := [name for name, value in wanted.items() if value is None]:
        options = ", ".join(
            "--signature" if name == "file_signature" else f"--{name.replace('_', '-')}" for name in missing
        )
        if args.file:
            raise UsageError(
                f"file {args.file} (state {record.get('state')}) has no {', '.join(missing)}: "
                f"wait until it is ready, or give {options}"
            )
        raise UsageError(f"the file is not fully named: give --file FILE_ID, or also {options}")
    return wanted | {"target_user": args.user, "target_file_dir": args.dir} | given_of(args, DownloadOptions)


def _submit(context: Context, args: argparse.Namespace) -> Exit | None:
    what, targets = _file_and_place(context, args), args.target or []
    answers: list[dict[str, Any]] = []
    if bool(targets) == bool(args.group or args.label):
        problem = "--target cannot be combined with --group or --label" if targets else "no hosts are named"
        raise UsageError(f"{problem}: give either --target, or --group and --label")
    if args.wave and len(targets) > TARGETS_A_CALL:
        raise UsageError(
            f"--wave works within one Job: give at most {TARGETS_A_CALL} targets (not {len(targets)}), or a --group"
        )
    if not targets or args.wave:
        choice = {"targets": targets} if targets else {"groups": args.group, "labels": dict(args.label or ())}
        made = context.client.downloads.submit_batch(**what, **choice, waves=args.wave)
        if args.watch:
            return _follow_job(context, made["job_id"], what)
        answers.append({**made})
    elif len(targets) == 1:
        target = targets[0]
        single = context.client.downloads.submit(
            **what, target_agent_id=target["agent_id"], target_container_id=target["container_id"]
        )
        answers.append({**single, "tasks": [{"task_id": single["task_id"], **target}]})
    else:
        for start in range(0, len(targets), TARGETS_A_CALL):
            batch = context.client.downloads.submit_batch(**what, targets=targets[start : start + TARGETS_A_CALL])
            answers.append({**batch})
    if args.watch:
        tasks = {
            task["task_id"]: {**task, "status": "Pending", **_destination(what, task["agent_id"])}
            for answer in answers
            for task in answer["tasks"]
        }
        ended = follow(context, list(tasks), known=tasks)
        if ended is not Exit.OK:
            for job_id in dict.fromkeys(str(answer["job_id"]) for answer in answers):
                context.output.note(f"to send it again to the hosts that failed: tidegate job redrive {job_id} --watch")
        return ended
    for answer in answers:
        context.output.record(answer)
    return None


def _destination(what: dict[str, Any], agent_id: str) -> dict[str, Any]:
    return {"file_name": what["file_name"], "target_agent_id": agent_id, "target_file_dir": what["target_file_dir"]}


def _follow_job(context: Context, job_id: str, what: dict[str, Any] | None = None) -> Exit:
    """Shows the Job until it ends, then a line for each target that failed."""
    ended = follow(context, [job_id])
    if ended is not Exit.OK:
        job = what or dict(context.client.jobs.get(job_id))
        for status in ("Failed", "Timeout", "Cancelled", "Superseded"):
            for target in walk(lambda c, s=status: context.client.jobs.targets(job_id, status=s, limit=100, cursor=c)):  # type: ignore[misc]
                place = {"file_name": job["file_name"], "target_file_dir": job["target_file_dir"]}
                record = {**place, **target, "target_agent_id": target["agent_id"]}
                context.output.event(record, line_of(record))
    return ended


def _note(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.jobs.update(args.job, note=args.note or None))


def _redrive(context: Context, args: argparse.Namespace) -> Exit | None:
    made = context.client.jobs.redrive(args.job, statuses=args.status, force=args.force)
    for target in made["skipped"] or ():
        host = ":".join(filter(None, (target["agent_id"], target["container_id"])))
        context.output.note(f"{host} is left out: the newer Job {target['newer_job']} sent content to the same path")
    if unnamed := (made["skipped_targets"] or 0) - len(made["skipped"] or ()):
        context.output.note(f"{unnamed} more targets are left out, for the same reason")
    if args.watch:
        return _follow_job(context, made["job_id"])
    context.output.record(made)
    return None


def _status(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.downloads.get(args.task))


def _watch(context: Context, args: argparse.Namespace) -> Exit:
    return follow(context, args.task, use_socket=not args.poll)


def _list(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.downloads.list(
            job_id=args.job, status=args.status, limit=args.limit, cursor=cursor
        ),
        TASK_COLUMNS,
    )


def _show_job(context: Context, args: argparse.Namespace) -> Exit | None:
    client, output = context.client, context.output
    if args.watch:
        return _follow_job(context, args.job)
    job = client.jobs.get(args.job)
    targets = list(walk(lambda cursor: client.jobs.targets(args.job, status=args.status, limit=100, cursor=cursor)))
    if output.as_json:
        output.record({**job, "targets": targets})
        return None
    output.record(job)
    output.line(f"\n{line_of(job)}")
    columns = ["agent_id", "container_id", "status", "progress", "staged_at", "error_code", "error_msg"]
    if any(target.get("arrived") for target in targets):
        columns.insert(3, "arrived")
    output.table(targets, columns)
    return None
