"""Tenants and their keys."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

SCOPES = ("read", "write", "agent", "admin")


@dataclass(frozen=True, slots=True)
class Project:
    project_id: str
    name: str
    group: str | None
    allow_private_urls: bool
    created_at: str
    # Newest first; while a rotation lasts there are two, and both sign.
    callback_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApiKey:
    key_id: str
    project_id: str
    scopes: tuple[str, ...]
    agent_id: str | None
    key_sha256: str
    created_at: str


def hash_key(key: str) -> str:
    """Keys are 160 random bits, so a plain hash is enough to keep them out of the table."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_key(given: str, key_sha256: str) -> bool:
    return bool(key_sha256) and hmac.compare_digest(hash_key(given), key_sha256)


def format_key(key_id: str, secret: str) -> str:
    return f"tg_{key_id}_{secret}"


def key_id_of(key: str) -> str | None:
    parts = key.split("_")
    return parts[1] if len(parts) == 3 and parts[0] == "tg" and parts[1] else None
