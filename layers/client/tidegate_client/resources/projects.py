from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tidegate_client.http import Http, path_part
from tidegate_client.models import Key, Page, Project
from tidegate_client.resources.paging import one_page


class Projects:
    def __init__(self, http: Http) -> None:
        self._http = http

    def create(
        self,
        name: str,
        *,
        group: str | None = None,
        allow_private_urls: bool = False,
        idempotency_key: str | None = None,
    ) -> Project:
        body: dict[str, object] = {"name": name, "allow_private_urls": allow_private_urls}
        if group:
            body["group"] = group
        return cast(Project, self._http.create("/v1/projects", body, idempotency_key=idempotency_key))

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Page[Project]:
        return one_page(self._http, "/v1/projects", {}, limit, cursor)

    def set_swarm(
        self,
        project_id: str,
        *,
        swarm: str = "auto",
        peer_networks: Sequence[str] = (),
        free_sites: Sequence[str] = (),
    ) -> None:
        """Whether hosts of the project feed each other, where their addresses may lie, and sites that need no swarm."""
        body = {"swarm": swarm, "peer_networks": list(peer_networks), "free_sites": list(free_sites)}
        self._http.call("PUT", f"/v1/projects/{path_part(project_id)}/swarm", body=body)

    def rotate_callback_secret(self, project_id: str) -> str:
        """A new `whsec_…`; callbacks carry both signatures until the one before is retired."""
        return str(self._http.create(f"/v1/projects/{path_part(project_id)}/callback-secrets", {})["callback_secret"])

    def retire_callback_secret(self, project_id: str) -> None:
        self._http.call("DELETE", f"/v1/projects/{path_part(project_id)}/callback-secrets/previous")


class Keys:
    def __init__(self, http: Http) -> None:
        self._http = http

    def create(self, project_id: str, scopes: Sequence[str], *, agent_id: str | None = None) -> Key:
        body: dict[str, object] = {"scopes": list(scopes)}
        if agent_id:
            body["agent_id"] = agent_id
        return cast(Key, self._http.create(f"/v1/projects/{path_part(project_id)}/keys", body))

    def delete(self, key_id: str) -> None:
        self._http.call("DELETE", f"/v1/keys/{path_part(key_id)}")
