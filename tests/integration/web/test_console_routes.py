"""Routes that the console needs: stored credentials, next runs, the deployment."""

from __future__ import annotations

from tests.support.moto.cloud import MotoCloud
from tidegate.settings import Settings
from tidegate.web.console.routes import parameters

COOKIES = {"headers": {"X-Token": "very-secret", "Cookie": "a=b"}, "origins": ["https://files.example"]}


def test_credentials_are_listed_without_header_values(cloud: MotoCloud) -> None:
    project, other = cloud.project("mine"), cloud.project("others")
    assert cloud.http("PUT", "/v1/credentials/cookies", json=COOKIES, key=project.key).status == 204

    listed = cloud.http("GET", "/v1/credentials", key=project.key)

    (credential,) = listed.json()["items"]
    assert (credential["name"], credential["origins"]) == ("cookies", ["https://files.example:443"])
    assert credential["headers"] == ["Cookie", "X-Token"]
    assert "very-secret" not in listed.body.decode()
    assert cloud.http("GET", "/v1/credentials", key=other.key).json()["items"] == []
    assert cloud.http("DELETE", "/v1/credentials/cookies", key=project.key).status == 204
    assert cloud.http("GET", "/v1/credentials", key=project.key).json()["items"] == []


def test_active_subscription_shows_its_next_run(cloud: MotoCloud) -> None:
    key = cloud.project("mine").key
    body = {"name": "s", "source_url": "https://files.example/list", "schedule": "rate(1 hour)"}
    subscription = cloud.http("POST", "/v1/subscriptions", json=body, key=key).json()
    assert subscription["next_run"] > subscription["create_time"]

    paused = cloud.http("POST", f"/v1/subscriptions/{subscription['subscription_id']}/pause", key=key).json()

    assert paused.get("next_run") is None


def test_system_shows_parameters_but_no_secrets(cloud: MotoCloud) -> None:
    shown = cloud.http("GET", "/v1/system", key=cloud.admin_key)

    assert shown.status == 200, shown.body
    assert shown.json()["parameters"]["CollectWindowSeconds"] > 0
    shown_parameters = parameters(
        Settings(admin_key_sha256="aa", callback_root_name="bb", gse_credentials_id="cc", table_name="dd")
    )
    assert {"aa", "bb", "cc", "dd"}.isdisjoint(str(value) for value in shown_parameters.values())
