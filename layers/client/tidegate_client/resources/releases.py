from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate_client.http import path_part
from tidegate_client.model import Page
from tidegate_client.models import Release, ReleaseHost, Revision
from tidegate_client.resources.paging import Resource


class Releases(Resource):
    """Releases: which files should be on which hosts, which are there, and how to roll back."""

    def put(self, name: str, body: Mapping[str, Any]) -> Release:
        """Sets the desired revision of a release: `files`, `targets` and further fields of the API reference.
        Safe to repeat."""
        return Release(self._http.call("PUT", self._path(name), body=dict(body)).json())

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Page[Release]:
        return self._page("/v1/releases", {}, limit, cursor, Release)

    def get(self, name: str) -> Release:
        return Release(self._http.get(self._path(name)))

    def revisions(self, name: str, *, limit: int | None = None, cursor: str | None = None) -> Page[Revision]:
        return self._page(self._path(name, "revisions"), {}, limit, cursor, Revision)

    def revision(self, name: str, number: int) -> Revision:
        return Revision(self._http.get(self._path(name, f"revisions/{number}")))

    def hosts(
        self, name: str, *, state: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[ReleaseHost]:
        return self._page(self._path(name, "hosts"), {"state": state}, limit, cursor, ReleaseHost)

    def drift(self, name: str, *, limit: int | None = None, cursor: str | None = None) -> Page[ReleaseHost]:
        """Lists the hosts on which somebody changed a file of the release."""
        return self._page(self._path(name, "drift"), {}, limit, cursor, ReleaseHost)

    def rollback(self, name: str, *, to: int | None = None) -> Release:
        """Creates a revision with the content of the last good one, or of revision `to`, for all hosts at once."""
        return self._act(name, "rollback", {} if to is None else {"to": to})

    def pause(self, name: str) -> Release:
        return self._act(name, "pause")

    def resume(self, name: str) -> Release:
        return self._act(name, "resume")

    def activate(self, name: str) -> Release:
        """Lets hosts activate the revision that they have staged."""
        return self._act(name, "activate")

    def gate(self, name: str, *, passes: bool, reason: str | None = None) -> Release:
        """Decides the current wave: it passes without waiting for its soak time, or fails."""
        return self._act(name, "gate", {"pass": passes} | ({"reason": reason} if reason else {}))

    def delete(self, name: str) -> None:
        """Deletes the release. Its files stay on the hosts."""
        self._http.call("DELETE", self._path(name))

    def _act(self, name: str, what: str, body: dict[str, Any] | None = None) -> Release:
        return Release(self._http.create(self._path(name, what), body or {}))

    @staticmethod
    def _path(name: str, *rest: str) -> str:
        return "/".join(("/v1/releases", path_part(name), *rest))
