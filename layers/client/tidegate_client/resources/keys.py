from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate_client.errors import AlreadyCreated
from tidegate_client.http import path_part
from tidegate_client.model import Page
from tidegate_client.models import Key, KeyRecord, SignInTicket
from tidegate_client.resources.paging import Resource


class Keys(Resource):
    """API keys. A new key is shown only once.

    If the answer with the key is lost, the client revokes that key and creates another one."""

    def create(
        self,
        project_id: str,
        scopes: Sequence[str],
        *,
        agent_id: str | None = None,
        name: str | None = None,
        expires_in: int | None = None,
    ) -> Key:
        body = {"scopes": list(scopes), "agent_id": agent_id, "name": name, "expires_in": expires_in}
        return self._created(f"/v1/projects/{path_part(project_id)}/keys", body)

    def create_admin(self, *, name: str | None = None, expires_in: int | None = None) -> Key:
        return self._created("/v1/keys", {"name": name, "expires_in": expires_in})

    def _created(self, path: str, body: Mapping[str, Any]) -> Key:
        fields = {name: value for name, value in body.items() if value is not None}
        try:
            return Key(self._http.create(path, fields))
        except AlreadyCreated as error:
            if error.key_id is None:
                raise
            self.delete(error.key_id)
            return Key(self._http.create(path, fields))

    def list(self, project_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[KeyRecord]:
        return self._page(f"/v1/projects/{path_part(project_id)}/keys", {}, limit, cursor, KeyRecord)

    def list_admin(self, *, limit: int | None = None, cursor: str | None = None) -> Page[KeyRecord]:
        return self._page("/v1/keys", {}, limit, cursor, KeyRecord)

    def rotate(self, key_id: str, *, overlap_s: int | None = None) -> Key:
        """Creates a key that replaces this one. The old key works for `overlap_s` more seconds (default: a day)."""
        body = {} if overlap_s is None else {"overlap_s": overlap_s}
        try:
            return Key(self._http.create(f"/v1/keys/{path_part(key_id)}/rotate", body))
        except AlreadyCreated as error:
            if error.key_id is None:
                raise
            return Key(self._http.create(f"/v1/keys/{path_part(error.key_id)}/rotate", {"overlap_s": 0}))

    def sign_in_ticket(self) -> SignInTicket:
        """Returns a ticket that signs in to the console once, within a minute, at `{api_url}/#ticket={ticket}`.
        Needs an admin key."""
        return SignInTicket(self._http.create("/v1/sign-in-tickets", {}))

    def delete(self, key_id: str) -> None:
        """Revokes the key and closes its WebSockets."""
        self._http.call("DELETE", f"/v1/keys/{path_part(key_id)}")
