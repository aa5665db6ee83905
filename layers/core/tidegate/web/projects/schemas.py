from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidegate.web.schemas import Answer, Body, Text

Scope = Literal["read", "write", "agent"]


class ProjectBody(Body):
    name: Annotated[Text, Field(min_length=2, max_length=60)]
    group: Text | None = None
    allow_private_urls: bool = False


class ProjectAnswer(Answer):
    project_id: str
    name: str
    group: str | None = None
    allow_private_urls: bool = False
    created_at: str


class ProjectList(Answer):
    items: list[ProjectAnswer]
    next_cursor: str | None = None


class SwarmSettingsBody(Body):
    """Whether a project's hosts feed each other, and where they may be."""

    swarm: Literal["auto", "off"] = "auto"
    peer_networks: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=32)] = []
    free_sites: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=100)] = []


class SwarmSettingsAnswer(Answer):
    swarm: str
    peer_networks: list[str]
    free_sites: list[str]


class KeyBody(Body):
    scopes: Annotated[list[Scope], Field(min_length=1)]
    agent_id: Text | None = None


class KeyAnswer(Answer):
    key_id: str
    key: str
    callback_secret: str
