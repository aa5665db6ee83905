"""Keys, projects, files and refusals over HTTP on the deployed stack, with MiniStack's AUTH=true."""

from __future__ import annotations

import hashlib
import random
import urllib.parse
import uuid

import pytest
import urllib3

from tests.support.deployed import Deployed, DeployedProject, until

FILE = {"biz_id": 2, "app_id": 3, "file_path": "/data/file.bin"}


def test_health_docs_and_console_are_open(deployed: Deployed) -> None:
    assert deployed.http("GET", "/healthz").status == 200
    assert "/v1/files" in deployed.http("GET", "/openapi.json").json()["paths"]
    for page in ("/docs", "/"):
        answer = deployed.http("GET", page)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("key", [None, "wrong", "tg_" + "0" * 40])
def test_missing_or_unknown_key_is_401(deployed: Deployed, key: str | None) -> None:
    answer = deployed.http("GET", "/v1/files", key=key)
    assert answer.status == 401
    assert answer.headers["content-type"] == "application/problem+json"


def test_key_without_the_scope_is_403(deployed: Deployed, project: DeployedProject) -> None:
    reader = deployed.make_key(project.id, ["read"])["key"]
    assert deployed.http("POST", "/v1/files", json=FILE, key=reader).status == 403
    assert deployed.http("GET", "/v1/projects", key=project.key).status == 403
    odd = deployed.http("GET", "/v1/projects%0A", key=project.key)
    assert (odd.status, odd.json()["code"]) == (400, "bad_path")


def test_deleted_key_is_refused_after_the_authorizers_cache_expires(
    deployed: Deployed, project: DeployedProject
) -> None:
    created = deployed.make_key(project.id, ["read"])
    assert deployed.http("GET", "/v1/files", key=created["key"]).status == 200
    assert deployed.http("DELETE", f"/v1/keys/{created['key_id']}", key=deployed.admin_key).status == 204
    until(lambda: deployed.http("GET", "/v1/files", key=created["key"]).status, lambda status: status == 401, every=2)


def test_taken_project_name_is_409(deployed: Deployed) -> None:
    name = f"taken-{uuid.uuid4().hex[:6]}"
    deployed.project(name)
    again = deployed.http("POST", "/v1/projects", json={"name": name}, key=deployed.admin_key)
    assert (again.status, again.json()["code"]) == (409, "project_exists")


def test_another_projects_file_is_404(deployed: Deployed, project: DeployedProject) -> None:
    content = b"mine alone"
    file_id = deployed.store(project, "/data/mine", content, hashlib.sha256(content).hexdigest())
    stranger = deployed.project()
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/url"):
        assert project.http("GET", path).status == 200
        assert stranger.http("GET", path).status == 404
    assert stranger.http("POST", f"/v1/files/{file_id}/complete").status == 404
    assert stranger.http("GET", "/v1/files").json()["items"] == []


def test_repeated_idempotency_key_gives_the_same_answer_and_one_record(project: DeployedProject) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    first = project.http("POST", "/v1/files", json=FILE, headers=headers)
    again = project.http("POST", "/v1/files", json=FILE, headers=headers)
    assert (first.status, again.status) == (201, 201)
    assert first.json()["file_id"] == again.json()["file_id"]
    other = project.http("POST", "/v1/files", json={**FILE, "file_path": "/other"}, headers=headers)
    assert (other.status, other.json()["code"]) == (409, "idempotency_conflict")


def test_file_of_20_mb_is_downloaded_as_it_was_uploaded(deployed: Deployed, project: DeployedProject) -> None:
    content = random.Random(20).randbytes(20 * 1024 * 1024)
    signature = hashlib.sha256(content).hexdigest()
    announced = {**FILE, "file_name": "数据 – été.bin", "signature": signature, "size": len(content)}
    file = project.http("POST", "/v1/files", json=announced).json()
    put = deployed.pool.request("PUT", file["upload_url"], body=content, headers=file["upload_headers"])
    assert put.status == 200, put.data
    completed = project.http("POST", f"/v1/files/{file['file_id']}/complete")
    assert completed.status == 200, completed.body
    shown = project.http("GET", f"/v1/files/{file['file_id']}").json()
    assert (shown["size"], shown["signature"]) == (len(content), signature)
    url = project.http("GET", f"/v1/files/{file['file_id']}/url").json()["url"]
    downloaded = deployed.pool.request("GET", url)
    assert downloaded.status == 200
    assert hashlib.sha256(downloaded.data).hexdigest() == signature
    disposition = downloaded.headers["content-disposition"]
    assert urllib.parse.quote("数据 – été.bin", safe="") in disposition


def test_corrupted_upload_is_refused_and_removed(deployed: Deployed, project: DeployedProject) -> None:
    """Even if the store accepts the upload, `complete` checks the bytes themselves."""
    signature = hashlib.sha256(b"the right content").hexdigest()
    file = project.http("POST", "/v1/files", json={**FILE, "signature": signature}).json()
    uploaded = f"content/{project.id}/{file['file_id']}"
    deployed.client("s3").put_object(
        Bucket=deployed.outputs["FilesBucketName"], Key=uploaded, Body=b"the wrong content"
    )
    refused = project.http("POST", f"/v1/files/{file['file_id']}/complete")
    assert (refused.status, refused.json()["code"]) == (422, "signature_mismatch")
    bucket = deployed.outputs["FilesBucketName"]
    objects = deployed.client("s3").list_objects_v2(Bucket=bucket, Prefix=f"content/{project.id}/").get("Contents", [])
    # With the quota stored_bytes an empty object keeps the presigned URL from being used again.
    assert [each for each in objects if each["Size"]] == []


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"biz_id": 2, "app_id": 3}, 422, "file_path"),
        ({**FILE, "colour": "red"}, 422, "colour"),
        ({**FILE, "size": "many"}, 422, "size"),
        ({**FILE, "signature": "abc"}, 422, "signature"),
        ({**FILE, "file_path": "/a/../b"}, 422, "file_path"),
        ({**FILE, "file_path": "/a\0b"}, 422, "file_path"),
        ({**FILE, "file_path": "/" + "é" * 512}, 422, "file_path"),
        ([], 422, ""),
    ],
)
def test_bad_fields_are_422_and_named(project: DeployedProject, body: object, status: int, field: str) -> None:
    answer = project.http("POST", "/v1/files", json=body)
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert field in str(answer.json().get("errors"))
    assert b"Traceback" not in answer.body


def test_broken_json_is_400_and_body_over_1_mb_is_413(project: DeployedProject) -> None:
    json_type = {"content-type": "application/json"}
    assert project.http("POST", "/v1/files", body=b'{"biz_id": ', headers=json_type).status == 400
    assert project.http("POST", "/v1/files", json={**FILE, "file_name": "x" * 1_100_000}).status == 413


def test_unknown_route_is_404_and_wrong_method_is_405(project: DeployedProject) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("PUT", "/v1/files", 405)):
        answer = project.http(method, path)
        assert answer.status == status, answer.body
        assert answer.json()["status"] == status


def unsigned(deployed: Deployed, target: str) -> urllib3.BaseHTTPResponse:
    headers = {"x-amz-target": target, "content-type": "application/x-amz-json-1.0"}
    return deployed.pool.request("POST", deployed.up.cloud.endpoint_url + "/", body=b"{}", headers=headers)


@pytest.mark.parametrize(
    "target", ["DynamoDB_20120810.ListTables", "AmazonSQS.ListQueues", "AWSStepFunctions.ListStateMachines"]
)
def test_unsigned_calls_to_the_cloud_are_refused(deployed: Deployed, target: str) -> None:
    assert unsigned(deployed, target).status in {400, 403}


def test_unsigned_calls_to_the_files_bucket_are_refused(deployed: Deployed) -> None:
    endpoint = deployed.up.cloud.endpoint_url
    bucket = deployed.outputs["FilesBucketName"]
    assert deployed.pool.request("GET", f"{endpoint}/{bucket}").status == 403
    assert deployed.pool.request("GET", f"{endpoint}/{bucket}/any").status == 403
    assert deployed.pool.request("GET", f"{endpoint}/", redirect=False).status == 307


def test_changed_upload_url_is_refused(deployed: Deployed, project: DeployedProject) -> None:
    url = project.http("POST", "/v1/files", json=FILE).json()["upload_url"]
    base, _, query = url.partition("?")
    assert deployed.pool.request("PUT", f"{base}x?{query}", body=b"x").status == 403


def test_upload_url_accepts_the_announced_bytes_once_and_no_others(
    deployed: Deployed, project: DeployedProject
) -> None:
    right, other = b"the right content", b"the other content"
    announced = {"signature": hashlib.sha256(right).hexdigest(), "size": len(right)}
    file = project.http("POST", "/v1/files", json={**FILE, **announced}).json()
    headers = file["upload_headers"]

    def put(body: bytes, sent_headers: dict[str, str]) -> int:
        return deployed.pool.request("PUT", file["upload_url"], body=body, headers=sent_headers, retries=False).status

    longer = right + b"!"
    assert put(longer, headers | {"Content-Length": str(len(longer))}) == 403
    assert put(right, {name: value for name, value in headers.items() if name != "x-amz-checksum-sha256"}) == 403
    assert put(right, {name: value for name, value in headers.items() if name != "If-None-Match"}) == 403
    assert put(other, headers) == 400, "S3: BadDigest"
    assert put(right, headers) == 200
    assert put(right, headers) == 412
    assert project.http("POST", f"/v1/files/{file['file_id']}/complete").status == 200
