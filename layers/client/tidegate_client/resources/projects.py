from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate_client.http import path_part
from tidegate_client.model import Page
from tidegate_client.models import Project, ProjectDetail
from tidegate_client.resources.paging import Resource


class Projects(Resource):
    """Projects, their quotas and their callback secrets. Most calls need an admin key."""

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
        return self._page("/v1/projects", {}, limit, cursor, Project)

    def get(self, project_id: str) -> ProjectDetail:
        """Returns one project with its quotas and how much of each is used."""
        return ProjectDetail(self._http.get(f"/v1/projects/{path_part(project_id)}"))

    def update(self, project_id: str, changes: Mapping[str, Any]) -> ProjectDetail:
        """Changes the given fields: name, group, allow_private_urls, swarm, deliver_to, read_from, alarms, aws_roles,
        gse, shared_signatures and quotas.

        A quota of None gets its default. Lists of `gse` that are left out stay as they are."""
        reply = self._http.call("PATCH", f"/v1/projects/{path_part(project_id)}", body=changes, idempotent=True)
        return ProjectDetail(reply.json())

    def set_swarm(
        self, project_id: str, *, swarm: str = "auto", peer_networks: Sequence[str] = (), free_sites: Sequence[str] = ()
    ) -> None:
        """Sets whether hosts exchange pieces of files, in which networks, and which sites download from S3 only."""
        body = {"swarm": swarm, "peer_networks": list(peer_networks), "free_sites": list(free_sites)}
        self._http.call("PUT", f"/v1/projects/{path_part(project_id)}/swarm", body=body)

    def origin_secret(self, origin: str) -> str:
        """Returns the secret (`whsec_…`) with which the server at this origin verifies Tidegate's requests.

        `origin` is such as `https://shop.example`. Needs the scope `write`, for the project of the key, or the
        project that an admin key names."""
        return str(self._http.get("/v1/callback-secret", {"origin": origin})["callback_secret"])

    def rotate_callback_secret(self, project_id: str) -> str:
        """Creates a new callback secret (`whsec_…`), and one for each origin.
        Callbacks carry old and new signatures until `retire_callback_secret` is called."""
        return str(self._http.create(f"/v1/projects/{path_part(project_id)}/callback-secrets", {})["callback_secret"])

    def retire_callback_secret(self, project_id: str) -> None:
        """Ends a rotation: callbacks are no longer signed with the old secrets."""
        self._http.call("DELETE", f"/v1/projects/{path_part(project_id)}/callback-secrets/previous")
