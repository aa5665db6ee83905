"""tidegate doctor: what it does about earlier runs; tests/e2e/test_smoke.py runs it against a stack."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from pytest_httpserver import HTTPServer

from tidegate_client.client import Client
from tidegate_client.smoke import Smoke


def test_files_that_earlier_runs_left_are_deleted(httpserver: HTTPServer, tmp_path: Path) -> None:
    httpserver.expect_request("/v1/projects", method="POST").respond_with_json({"code": "project_exists"}, 409)
    projects = [{"project_id": "p-1", "name": "others"}, {"project_id": "p-2", "name": "doctor"}]
    httpserver.expect_request("/v1/projects", method="GET").respond_with_json({"items": projects})
    httpserver.expect_request("/v1/projects/p-2/keys").respond_with_json({"key_id": "k", "key": "secret"}, 201)
    now = datetime.now(timezone.utc)
    ages = {"old": timedelta(hours=2), "needed": timedelta(hours=3), "of-another-run": timedelta(minutes=5)}
    files = [{"file_id": file_id, "created_at": (now - age).isoformat()} for file_id, age in ages.items()]
    httpserver.expect_request("/v1/files", method="GET").respond_with_json({"items": files})
    httpserver.expect_request("/v1/files/old", method="DELETE").respond_with_data("", 204)
    httpserver.expect_request("/v1/files/needed", method="DELETE").respond_with_json({"code": "in_use"}, 409)
    url = httpserver.url_for("").rstrip("/")
    smoke = Smoke(Client(url, "admin"), lambda key: Client(url, key), tmp_path)

    assert smoke.project() == "doctor, of an earlier run, with two new keys"

    assert smoke.project_id == "p-2"
    deleted = [request.path for request, _ in httpserver.log if request.method == "DELETE"]
    assert deleted == ["/v1/files/old", "/v1/files/needed"]


def test_doctor_names_projects_without_a_grant_for_gse(httpserver: HTTPServer, tmp_path: Path) -> None:
    parameters = {"TransferEngine": "gse"}
    httpserver.expect_request("/v1/system").respond_with_json({"parameters": parameters})
    full = {"targets": ["web-*"], "dirs": ["/data"], "users": ["app"]}
    grants = {"shop": full, "no-user": full | {"users": []}, "new": {"targets": [], "dirs": [], "users": []}}
    projects = [{"project_id": f"p-{name}", "name": name, "gse": grant} for name, grant in grants.items()]
    httpserver.expect_request("/v1/projects", method="GET").respond_with_json({"items": projects})
    url = httpserver.url_for("").rstrip("/")
    smoke = Smoke(Client(url, "admin"), lambda key: Client(url, key), tmp_path)

    assert "no grant for GSE, so they cannot send files: no-user, new;" in smoke.grants()
    assert smoke.distribute().startswith("skipped")
    projects[1:] = []
    parameters["TransferEngine"] = "agent"
    httpserver.clear()
    httpserver.expect_request("/v1/system").respond_with_json({"parameters": parameters})
    assert smoke.grants().startswith("not needed")
