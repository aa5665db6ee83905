"""What this host lets the API do, whatever the API asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidegate_client.agent.disk.directories import resolve_inside
from tidegate_client.agent.refusals import RefusedOwner, RefusedPath


@dataclass(frozen=True, slots=True)
class Permits:
    """Directories as seen from the root (a container's own for its files), and users; empty: all of them."""

    directories: tuple[str, ...] = ()
    users: frozenset[str] = frozenset()

    def check_user(self, user: str) -> None:
        if self.users and user not in self.users:
            raise RefusedOwner(f"this host takes no files for user {user!r} (--allow-user)")

    def check_directory(self, root: Path, real: Path) -> None:
        """`real` is resolved, and so is each permitted directory: a symlink leads neither in nor out."""
        if not self.directories:
            return
        if not any(real.is_relative_to(resolve_inside(root, allowed)) for allowed in self.directories):
            raise RefusedPath(f"this host takes no files into {str(real)!r} (--allow-dir)")
