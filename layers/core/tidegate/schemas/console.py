"""What the console asks for itself."""

from __future__ import annotations

from tidegate.schemas.base import Answer


class Me(Answer):
    project_id: str
    project_name: str | None = None
    scopes: list[str]
    agent_id: str | None = None
    window_seconds: int
