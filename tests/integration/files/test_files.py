"""Files: announce, upload, check, link."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.aws.table import delete
from tidegate.files.model import PARTS_SECONDS, upload_object
from tidegate.files.upload import UPLOAD_SECONDS

CONTENT = b"tide" * 50_000
SHA = hashlib.sha256(CONTENT).hexdigest()
BODY = {"biz_id": 1, "app_id": 2, "file_path": "/data/报表.bin"}


def announce(cloud: MotoCloud, project: Project, **more: Any) -> str:
    answer = cloud.http("POST", "/v1/files", json={**BODY, **more}, key=project.key)
    assert answer.status == 201, answer.body
    return str(answer.json()["file_id"])


def upload(cloud: MotoCloud, project: Project, file_id: str, content: bytes = CONTENT) -> None:
    cloud.client("s3").put_object(
        Bucket=cloud.app.files.bucket.name, Key=upload_object(project.id, file_id), Body=content
    )


def objects(cloud: MotoCloud) -> list[str]:
    found = cloud.client("s3").list_objects_v2(Bucket=cloud.app.files.bucket.name).get("Contents", [])
    return [entry["Key"] for entry in found]


def test_upload_complete_and_link(cloud: MotoCloud, project: Project) -> None:
    file_id = announce(cloud, project, signature=SHA, size=len(CONTENT))
    upload(cloud, project, file_id)

    done = cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key)

    assert done.status == 200
    assert (done.json()["state"], done.json()["signature"], done.json()["size"]) == ("ready", SHA, len(CONTENT))
    assert objects(cloud) == [upload_object(project.id, file_id)], "the uploaded object itself is the content"
    link = cloud.http("GET", f"/v1/files/{file_id}/url", key=project.key).json()
    assert "response-content-disposition=attachment" in link["url"]
    assert "UTF-8%27%27" in link["url"]


@pytest.mark.parametrize(
    ("announced", "headers"),
    [
        ({}, {"If-None-Match": "*"}),
        ({"size": 7}, {"If-None-Match": "*", "Content-Length": "7"}),
        (
            {"size": len(CONTENT), "signature": SHA},
            {
                "If-None-Match": "*",
                "Content-Length": str(len(CONTENT)),
                "x-amz-checksum-sha256": base64.b64encode(bytes.fromhex(SHA)).decode(),
            },
        ),
    ],
    ids=["nothing known", "size known", "all known"],
)
def test_upload_url_is_signed_for_the_announced_content(
    cloud: MotoCloud, project: Project, announced: dict[str, Any], headers: dict[str, str]
) -> None:
    made = cloud.http("POST", "/v1/files", json={**BODY, **announced}, key=project.key).json()

    query = dict(parse_qsl(urlsplit(made["upload_url"]).query))
    assert made["upload_headers"] == headers
    assert set(query["X-Amz-SignedHeaders"].split(";")) == {"host", *(name.lower() for name in headers)}


def test_complete_is_idempotent(cloud: MotoCloud, project: Project) -> None:
    file_id = announce(cloud, project)
    upload(cloud, project, file_id)

    first = cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key)
    second = cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key)

    assert (first.status, first.json()) == (second.status, second.json())
    assert first.json()["signature"] == SHA


@pytest.mark.parametrize("announced", [{"signature": "0" * 64}, {"size": 7}])
def test_mismatch_is_refused_and_the_object_removed(
    cloud: MotoCloud, project: Project, announced: dict[str, Any]
) -> None:
    file_id = announce(cloud, project, **announced)
    upload(cloud, project, file_id)

    refused = cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key)

    assert (refused.status, refused.json()["code"]) == (422, "signature_mismatch")
    assert objects(cloud) == []
    assert cloud.http("GET", f"/v1/files/{file_id}", key=project.key).json()["state"] == "failed"


def test_complete_before_the_upload_is_409(cloud: MotoCloud, project: Project) -> None:
    file_id = announce(cloud, project)

    assert cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key).status == 409
    assert cloud.http("GET", f"/v1/files/{file_id}/url", key=project.key).status == 409


def test_same_content_is_stored_once(cloud: MotoCloud, project: Project) -> None:
    made = [announce(cloud, project, file_path=path) for path in ("/a", "/b")]
    for file_id in made:
        upload(cloud, project, file_id)
        cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key)

    assert objects(cloud) == [upload_object(project.id, made[0])]
    links = [cloud.http("GET", f"/v1/files/{file_id}/url", key=project.key).json()["url"] for file_id in made]
    assert {urlsplit(link).path for link in links} == {f"/{cloud.app.files.bucket.name}/{objects(cloud)[0]}"}


def test_another_projects_file_is_404(cloud: MotoCloud, project: Project) -> None:
    file_id = announce(cloud, project)
    other = cloud.project()

    for method, path in [("GET", ""), ("GET", "/url"), ("POST", "/complete")]:
        assert cloud.http(method, f"/v1/files/{file_id}{path}", key=other.key).status == 404
    assert cloud.http("GET", "/v1/files", key=other.key).json()["items"] == []


def test_lists_filter_by_path(cloud: MotoCloud, project: Project) -> None:
    wanted = announce(cloud, project)
    announce(cloud, project, app_id=9)

    exact = cloud.http("GET", "/v1/files", query=BODY, key=project.key).json()
    partly = cloud.http("GET", "/v1/files", query={"app_id": 2}, key=project.key).json()

    assert [item["file_id"] for item in exact["items"]] == [wanted]
    assert [item["file_id"] for item in partly["items"]] == [wanted]


def test_repeated_idempotency_key_creates_no_second_file(cloud: MotoCloud, project: Project) -> None:
    headers = {"idempotency-key": "once"}

    first = cloud.http("POST", "/v1/files", json=BODY, key=project.key, headers=headers)
    again = cloud.http("POST", "/v1/files", json=BODY, key=project.key, headers=headers)
    other = cloud.http("POST", "/v1/files", json={**BODY, "app_id": 3}, key=project.key, headers=headers)

    assert first.status == 201
    assert (again.status, again.json()) == (first.status, first.json())
    assert (other.status, other.json()["code"]) == (409, "idempotency_conflict")
    assert len(cloud.http("GET", "/v1/files", key=project.key).json()["items"]) == 1


def test_idempotency_key_belongs_to_its_project(cloud: MotoCloud, project: Project) -> None:
    headers = {"idempotency-key": "once"}
    other = cloud.project()

    first = cloud.http("POST", "/v1/files", json=BODY, key=project.key, headers=headers).json()
    theirs = cloud.http("POST", "/v1/files", json=BODY, key=other.key, headers=headers).json()

    assert first["file_id"] != theirs["file_id"]


def record(cloud: MotoCloud, project: Project, file_id: str) -> dict[str, Any]:
    return cloud.app.table.get(keys.file(project.id, file_id), consistent=True) or {}


def test_announced_file_expires_after_its_upload_url(cloud: MotoCloud, project: Project) -> None:
    in_one, in_parts = announce(cloud, project), announce(cloud, project, multipart=True)
    lasts = {in_one: UPLOAD_SECONDS, in_parts: PARTS_SECONDS}
    for file_id, seconds in lasts.items():
        left = record(cloud, project, file_id)["expires_at"] - cloud.clock().timestamp()
        assert seconds < left <= seconds + 2 * 86400


def test_completed_file_does_not_expire(cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    small, late, large = (announce(cloud, project) for _ in range(3))
    for number, file_id in enumerate((small, late, large)):
        upload(cloud, project, file_id, CONTENT + bytes([number]))
    states = {small: "ready", late: "ready", large: "verifying"}
    for file_id, state in states.items():
        if file_id == late:
            # DynamoDB deletes expired records hours or days later, so this one can still be completed.
            cloud.clock.advance(3 * 86400)
        if file_id == large:
            monkeypatch.setattr("tidegate.files.upload.LARGEST_SINGLE_UPLOAD", 1000)
        done = cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key)
        assert done.json()["state"] == state
        assert "expires_at" not in record(cloud, project, file_id)


def test_refused_upload_still_expires(cloud: MotoCloud, project: Project) -> None:
    file_id = announce(cloud, project, signature="0" * 64)
    upload(cloud, project, file_id)
    assert cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key).status == 422
    assert record(cloud, project, file_id)["expires_at"] > cloud.clock().timestamp()


def test_completing_an_expired_file_is_404(cloud: MotoCloud, project: Project) -> None:
    file_id = announce(cloud, project)
    upload(cloud, project, file_id)
    cloud.app.table.write(delete(keys.file(project.id, file_id)))
    assert cloud.http("POST", f"/v1/files/{file_id}/complete", key=project.key).status == 404
