"""Exports with a password: the file opens with it, and nothing else keeps it."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import msoffcrypto
import pytest
import pyzipper

from tests.support.exports.paged_source import numbered
from tests.support.exports.running import ExportWorld
from tidegate.exports.store import spec_object
from tidegate.projects.secrets import opened, sealed

PASSWORD = "N0body-may-see-this"


def everything_kept(world: ExportWorld) -> str:
    """All items, objects, queued messages and inputs of executions, as text."""
    cloud = world.cloud
    items = cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"]
    texts = [json.dumps(items, default=str)]
    for key in world.objects(""):
        texts += [key, world.s3.get_object(Bucket=world.bucket, Key=key)["Body"].read().decode("latin-1")]
    machines = cloud.client("stepfunctions")
    for machine in machines.list_state_machines()["stateMachines"]:
        for run in machines.list_executions(stateMachineArn=machine["stateMachineArn"])["executions"]:
            described = machines.describe_execution(executionArn=run["executionArn"])
            texts += [described["input"], str(described.get("output"))]
    return "\n".join(texts)


def forms_of(secret: str) -> list[str]:
    return [
        secret,
        base64.b64encode(secret.encode()).decode().rstrip("="),
        secret.encode("utf-16-le").decode("latin-1"),
    ]


@pytest.mark.parametrize("kind", ["csv", "excel", "parquet"])
def test_file_opens_with_the_password_and_nothing_keeps_it(
    world: ExportWorld, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.source.rows = numbered(2500)
    shown, data = world.export(type=kind, source_url=world.source.url, step=100, password=PASSWORD)

    if kind == "excel":
        book = msoffcrypto.OfficeFile(io.BytesIO(data))
        book.load_key(password=PASSWORD, verify_password=True)
        assert shown["file_name"].endswith(".xlsx")
    else:
        archive = pyzipper.AESZipFile(io.BytesIO(data))
        archive.setpassword(PASSWORD.encode())
        assert archive.testzip() is None
        assert archive.namelist() == [f"export.{kind}"]
        assert shown["file_name"].endswith(".zip")
    kept = everything_kept(world) + "".join(capsys.readouterr()) + json.dumps(shown)
    for form in forms_of(PASSWORD):
        assert form not in kept
    assert not world.objects("staging/")


def test_waiting_export_keeps_the_password_sealed_for_itself(world: ExportWorld) -> None:
    task_id = world.submit(source_data=[{"a": 1}], password=PASSWORD)

    for form in forms_of(PASSWORD):
        assert form not in everything_kept(world)
    stored = world.s3.get_object(Bucket=world.bucket, Key=spec_object(world.project.id, task_id))["Body"].read()
    text, root = json.loads(stored)["sealed_password"], world.cloud.app.projects.root_secret()
    assert opened(root, text, world.project.id, task_id) == PASSWORD
    for owner in ((world.project.id, "exp-other"), ("prj-other", task_id)):
        with pytest.raises(ValueError, match="another owner"):
            opened(root, text, *owner)
    with pytest.raises(ValueError, match="another root"):
        opened(b"x" * 32, text, world.project.id, task_id)
    assert sealed(root, PASSWORD, "a") != sealed(root, PASSWORD, "a")


def test_failed_export_keeps_the_sealed_password_for_a_retry(world: ExportWorld) -> None:
    world.source.rows = numbered(30)
    world.source.failures = {0: [400] * 10}
    task_id = world.submit(password=PASSWORD, step=100)
    assert world.run(task_id)["status"] == "failed"
    assert PASSWORD not in everything_kept(world)
    world.source.failures = {}
    assert world.cloud.http("POST", f"/v1/requests/{task_id}/retry", key=world.project.key).status == 200
    assert world.run(task_id)["status"] == "completed"

    archive = pyzipper.AESZipFile(io.BytesIO(world.file(task_id)))
    archive.setpassword(PASSWORD.encode())
    assert len(archive.read("export.csv").splitlines()) == 31


def sync(world: ExportWorld, **fields: Any) -> Any:
    body = {"name": "orders", "source_data": [{"a": 1}], **fields}
    return world.cloud.http("POST", "/v1/download/sync", json=body, key=world.project.key)


def test_synchronous_export_is_encrypted(world: ExportWorld, capsys: pytest.CaptureFixture[str]) -> None:
    answer = sync(world, password=PASSWORD)
    assert answer.status == 200
    archive = pyzipper.AESZipFile(io.BytesIO(answer.body))
    archive.setpassword(PASSWORD.encode())
    assert archive.read("export.csv") == b"a\n1\n"
    book = msoffcrypto.OfficeFile(io.BytesIO(sync(world, type="excel", password=PASSWORD).body))
    book.load_key(password=PASSWORD, verify_password=True)
    assert PASSWORD not in everything_kept(world) + "".join(capsys.readouterr())


@pytest.mark.parametrize("password", ["short", "x" * 101, "密码密码密码密码", "line\nbreak", ""])
def test_unfit_password_is_refused_and_not_repeated(world: ExportWorld, password: str) -> None:
    answer = sync(world, password=password)
    assert answer.status == 422
    assert answer.json()["errors"][0]["loc"] == ["body", "password"]
    assert not password or password not in answer.body.decode()


def test_password_in_an_address_is_refused(world: ExportWorld) -> None:
    path = f"/v1/download/sync?name=orders&source_data=%5B%7B%22a%22%3A1%7D%5D&password={PASSWORD}"
    answer = world.cloud.http("GET", path, key=world.project.key)
    assert answer.status == 422
    assert "POST" in answer.json()["detail"]


def test_recurring_export_with_a_password_is_refused(world: ExportWorld) -> None:
    answer = world.post("/v1/export-schedules", schedule="rate(1 day)", password=PASSWORD)
    assert answer.status == 422, answer.body
    assert "recurring" in answer.body.decode()
    assert PASSWORD not in everything_kept(world) + answer.body.decode()
