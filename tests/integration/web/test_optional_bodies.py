"""A POST whose fields are all optional needs no body."""

from __future__ import annotations

import pytest

from tests.support.moto.cloud import MotoCloud, Project


def test_admin_key_is_created_without_a_body(cloud: MotoCloud) -> None:
    assert cloud.http("POST", "/v1/keys", key=cloud.admin_key).status == 201


def test_enrolment_is_created_without_a_body(cloud: MotoCloud, project: Project) -> None:
    answer = cloud.http("POST", "/v1/enrolments", query={"project_id": project.id}, key=cloud.admin_key)

    assert (answer.status, answer.json()["token"][:4]) == (201, "tge_")


@pytest.mark.parametrize("path", ["/v1/jobs/none/redrive", "/v1/batches/none/biz-start", "/v1/batches/none/biz-stop"])
def test_record_is_looked_up_without_a_body(cloud: MotoCloud, project: Project, path: str) -> None:
    assert cloud.http("POST", path, key=project.key).status == 404
