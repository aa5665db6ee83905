"""Records of another project cannot be reached, however their path is written."""

from __future__ import annotations

from tests.support.fuzz.path_spellings import odd_spellings
from tests.support.moto.cloud import MotoCloud, Project


def test_record_of_another_project_is_hidden_however_its_path_is_spelled(cloud: MotoCloud, project: Project) -> None:
    records = {
        "files": ({"biz_id": 1, "app_id": 1, "file_path": "/a"}, "file_id"),
        "subscriptions": ({"name": "s", "source_url": "http://127.0.0.1/list"}, "subscription_id"),
        "biz": ({"name": "b", "process_url": "http://127.0.0.1/"}, "biz_id"),
    }
    stranger = cloud.project().key
    for kind, (body, name) in records.items():
        record = cloud.http("POST", f"/v1/{kind}", json=body, key=project.key).json()[name]
        plain = f"/v1/{kind}/{record}"
        assert cloud.http("GET", plain, key=project.key).status == 200
        for spelling in [plain, *odd_spellings(plain)]:
            if spelling.partition("?")[0].rstrip("/") != f"/v1/{kind}":
                assert cloud.http("GET", spelling, key=stranger).status in (400, 401, 404), spelling
