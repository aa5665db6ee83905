"""Every key and index format of the table. Nothing else builds one.

A pk starts with its project, so two projects share nothing; what belongs to no project belongs to `_system`.
"""

from __future__ import annotations

from tidegate.domain.ids import digest

SYSTEM = "_system"
META = "META"
DUE_SHARDS = 4


def _key(project_id: str, kind: str, *parts: str, sk: str = META) -> dict[str, str]:
    return {"pk": "#".join(("P", project_id, kind, *parts)), "sk": sk}


def partition(project_id: str, kind: str, *parts: str) -> str:
    """The partition of an index, for lists."""
    return "#".join(("P", project_id, kind, *parts))


def due(record_id: str, at: float, kind: str) -> dict[str, str | int]:
    """What makes a record show up in the sparse index of work that someone must look at."""
    shard = int(digest(record_id, length=8), 16) % DUE_SHARDS
    return {"due_pk": due_partition(shard), "due_at": int(at), "due_kind": kind}


def due_partition(shard: int) -> str:
    return f"DUE#{shard}"


DUE_ATTRIBUTES = ("due_pk", "due_at", "due_kind")

# --- projects, keys, idempotency


def project(project_id: str) -> dict[str, str]:
    return _key(project_id, "PROJECT")


def project_name(name: str) -> dict[str, str]:
    return _key(SYSTEM, "PROJECT_NAME", name)


def projects_list() -> str:
    return partition(SYSTEM, "PROJECTS")


def api_key(key_id: str) -> dict[str, str]:
    return _key(SYSTEM, "KEY", key_id)


def idempotency(project_id: str, idempotency_key: str) -> str:
    return partition(project_id, "IDEMPOTENCY", digest(idempotency_key, length=32))


# --- files


def file(project_id: str, file_id: str) -> dict[str, str]:
    return _key(project_id, "FILE", file_id)


def files_list(project_id: str) -> str:
    return partition(project_id, "FILES")


def files_at_path(project_id: str, biz_id: str, app_id: str, file_path: str) -> str:
    return partition(project_id, "PATH", digest(biz_id, app_id, file_path, length=32))


def content(project_id: str, signature: str) -> dict[str, str]:
    return _key(project_id, "CONTENT", signature)
