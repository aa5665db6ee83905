from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tidegate_client.errors import BadAnswer, Invalid
from tidegate_client.http import Http, path_part
from tidegate_client.inputs import Presence, Transfer, TransferResult
from tidegate_client.model import Page
from tidegate_client.models import Agent, Enrolled, Enrolment, EnrolmentOptions, HostFile
from tidegate_client.resources.paging import Resource

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Added to the seconds of a long poll for the time-out of the call.
LONG_POLL_MARGIN = 12.0
REQUIRED_FIELDS = frozenset({"transfer_id", "url", "file_name", "target_file_dir", "target_user", "signature"})


class Agents(Resource):
    """The hosts of a project, and the calls with which an agent gets transfers and reports results."""

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        # Set by an agent: the ids of this process and the previous one, so that the API notices two hosts with one id.
        self.instance: str | None = None
        # Set by an agent: returns a hash of the goals that it knows; called when the API has other goals.
        self.goals: Callable[[], str] | None = None
        self.on_new_goals: Callable[[], None] | None = None

    def _instance_header(self) -> dict[str, str]:
        return {"X-Tidegate-Instance": self.instance} if self.instance else {}

    def transfers(self, agent_id: str, *, wait: int = 0) -> list[Transfer]:
        """Returns the open transfers of a host (scope `agent`). `wait`: seconds to wait for one if there are none."""
        path = f"/v1/agents/{path_part(agent_id)}/transfers"
        # Without this header the API lists files with `activate_at` only when that time has come, and no release files.
        headers = {"X-Tidegate-Can": "stage,release"} | self._instance_header()
        headers |= {"X-Tidegate-Goals": self.goals()} if self.goals else {}
        reply = self._http.call("GET", path, query={"wait": wait}, headers=headers, timeout=wait + LONG_POLL_MARGIN)
        answer = reply.json()
        if isinstance(answer, dict) and answer.get("releases") and self.on_new_goals:
            self.on_new_goals()
        items = answer.get("items") if isinstance(answer, dict) else None
        if not isinstance(items, list) or not all(
            isinstance(item, dict) and item.keys() >= REQUIRED_FIELDS for item in items
        ):
            raise BadAnswer(
                f"the answer to GET {path} is not a list of transfers: check that no proxy answers for the API"
            )
        return cast("list[Transfer]", items)

    def report(self, agent_id: str, results: Sequence[TransferResult]) -> None:
        """Sends progress and results of transfers. Safe to repeat: a final result never changes."""
        path = f"/v1/agents/{path_part(agent_id)}/results"
        body, headers = {"items": list(results)}, self._instance_header()
        answer = self._http.call("POST", path, body=body, headers=headers, idempotent=True).json()
        if not isinstance(answer, dict) or "taken" not in answer:
            raise BadAnswer(
                f"the answer to POST {path} does not confirm the results: check that no proxy answers for the API"
            )

    def ask(self, agent_id: str, releases: Sequence[Mapping[str, Any]], has: Sequence[str]) -> list[dict[str, Any]]:
        """Reports which release files this host has; returns the files it should have (scope `agent`)."""
        path, body = f"/v1/agents/{path_part(agent_id)}/releases", {"releases": [*releases], "has": [*has]}
        answer = self._http.call("PUT", path, body=body, headers=self._instance_header()).json()
        items = answer.get("items") if isinstance(answer, dict) else None
        if not isinstance(items, list):
            raise BadAnswer(f"the answer to PUT {path} is not a list of goals: check that no proxy answers for the API")
        return items

    def tell_presence(self, agent_id: str, presence: Presence) -> None:
        """Reports the addresses at which other hosts can reach this one. They expire two hours after the last call."""
        path, headers = f"/v1/agents/{path_part(agent_id)}/presence", self._instance_header()
        self._http.call("PUT", path, body=presence, headers=headers)

    def list(
        self, *, group: str | None = None, state: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[Agent]:
        return self._page("/v1/agents", {"group": group, "state": state}, limit, cursor, Agent)

    def get(self, agent_id: str) -> Agent:
        return Agent(self._http.get(f"/v1/agents/{path_part(agent_id)}"))

    def files(self, agent_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[HostFile]:
        """Lists the files that releases put on the host, with changes that the host has reported since."""
        return self._page(f"/v1/agents/{path_part(agent_id)}/files", {}, limit, cursor, HostFile)

    def change(
        self, agent_id: str, *, groups: Sequence[str] | None = None, labels: Mapping[str, str] | None = None
    ) -> Agent:
        """Replaces the host's groups, its labels, or both."""
        body: dict[str, Any] = {}
        if groups is not None:
            body["groups"] = [*groups]
        if labels is not None:
            body["labels"] = dict(labels)
        return Agent(self._http.call("PATCH", f"/v1/agents/{path_part(agent_id)}", body=body).json())

    def delete(self, agent_id: str) -> None:
        """Removes the host, revokes all its keys and closes its connections."""
        self._http.call("DELETE", f"/v1/agents/{path_part(agent_id)}")

    def create_enrolment(self, **options: Unpack[EnrolmentOptions]) -> Enrolment:
        """Creates an enrolment token, shown once: as many hosts as `uses` says can exchange it for a key of their own.

        With `replace`, a host may enrol under an id that exists; the host that had the id is locked out."""
        # Empty options are left out: an older API refuses fields that it does not know. Numbers are sent, even 0.
        body = {name: value for name, value in options.items() if value or type(value) is int}
        return Enrolment(self._http.create("/v1/enrolments", body))

    def enrol(
        self,
        token: str,
        agent_id: str,
        *,
        version: str | None = None,
        zone: str | None = None,
        claim: str | None = None,
    ) -> Enrolled:
        """Exchanges an enrolment token for this host's key.

        The call may be repeated with the same `claim`, a secret of the host, until a key is used; only the last key
        works. Without a `claim`, a random one is used for this call."""
        fields = {"token": token, "agent_id": agent_id, "version": version, "zone": zone}
        body = {name: value for name, value in fields.items() if value is not None}
        claimed = body | {"claim": claim or secrets.token_hex(16)}
        try:
            return Enrolled(self._http.act("/v1/agents/enrol", claimed, idempotent=True))
        except Invalid as error:
            if not any("claim" in one.get("loc", ()) for one in error.errors):
                raise
            # An older API, which does not know `claim`.
            return Enrolled(self._http.act("/v1/agents/enrol", body, idempotent=True))

    def enrol_by_aws(
        self,
        identity: Mapping[str, Any],
        agent_id: str | None = None,
        *,
        version: str | None = None,
        zone: str | None = None,
        claim: str | None = None,
    ) -> Enrolled:
        """Exchanges the AWS role of this instance for its key. `identity` comes from `agent.aws.signed_identity`.

        A signed identity works once: to repeat the call, sign a new one and send the same `claim`. The host's id is
        the name of the role's session, on EC2 the instance id; another `agent_id` is refused."""
        fields = {"aws": dict(identity), "agent_id": agent_id, "version": version, "zone": zone, "claim": claim}
        body = {name: value for name, value in fields.items() if value is not None}
        return Enrolled(self._http.act("/v1/agents/enrol", body))
