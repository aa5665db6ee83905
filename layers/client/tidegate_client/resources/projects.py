from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate_client.http import Http, path_part
from tidegate_client.models import Page, Project, ProjectDetail
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
        return Project(self._http.create("/v1/projects", body, idempotency_key=idempotency_key))

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Page[Project]:
        return one_page(self._http, "/v1/projects", {}, limit, cursor, Project)

    def get(self, project_id: str) -> ProjectDetail:
        """With its quotas and what it uses of them."""
        return ProjectDetail(self._http.get(f"/v1/projects/{path_part(project_id)}"))

    def update(self, project_id: str, changes: Mapping[str, Any]) -> ProjectDetail:
        """Sets what `changes` names of name, group, allow_private_urls, swarm, deliver_to, read_from and quotas.

        A quota of None is lifted.
        """
        reply = self._http.call("PATCH", f"/v1/projects/{path_part(project_id)}", body=changes, idempotent=True)
        return ProjectDetail(reply.json())

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
