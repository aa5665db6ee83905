"""What a grant for GSE covers: targets, containers, directories in every spelling, and nothing else."""

from __future__ import annotations

import pytest

from tidegate.projects.model import GseGrant, path_parts

GRANT = GseGrant(targets=("web-*", "db-1/c-*", "[ab]-?"), dirs=("/data/app", "d:\\apps\\"), users=("app",))


@pytest.mark.parametrize(
    ("agent_id", "container_id", "granted"),
    [
        ("web-1", "", True),
        ("web-", "", True),
        ("xweb-1", "", False),
        ("WEB-1", "", False),
        ("web-1", "c-1", False),
        ("db-1", "c-1", True),
        ("db-1", "x-1", False),
        ("db-1", "", False),
        ("db-12", "c-1", False),
        ("a-1", "", True),
        ("c-1", "", False),
        ("a-12", "", False),
    ],
)
def test_pattern_covers_hosts_or_containers_but_not_both(agent_id: str, container_id: str, granted: bool) -> None:
    assert GRANT.has_target(agent_id, container_id) is granted


@pytest.mark.parametrize(
    ("path", "granted"),
    [
        ("/data/app", True),
        ("/data/app/", True),
        ("/data//app/./releases/1", True),
        ("/data/app/...hidden", True),
        ("/data/application", False),
        ("/data", False),
        ("/", False),
        ("/Data/App", False),
        ("/data/app/../../etc", False),
        ("/data/app/..", False),
        ("/data/app/.. /x", False),
        ("/data/app/.../x", False),
        ("/data/app\\..\\..\\windows", False),
        ("//data/app", False),
        ("data/app", False),
        ("", False),
        ("/data/app\n", False),
        ("D:/apps/x", True),
        ("d:\\apps", True),
        ("D:\\apps\\..\\windows", False),
        ("D:/apps/.. /windows", False),
        ("C:/apps", False),
        ("D:/Apps", False),
        ("D:apps", False),
        ("/D:/apps", False),
        ("é:/apps", False),
    ],
)
def test_directory_covers_what_is_below_it_in_every_spelling(path: str, granted: bool) -> None:
    assert GRANT.has_directory(path) is granted


def test_root_directory_covers_every_path() -> None:
    assert GseGrant(dirs=("/",)).has_directory("/etc/cron.d")
    assert not GseGrant(dirs=("/",)).has_directory("C:/x")


@pytest.mark.parametrize("empty", [GseGrant(), GseGrant(targets=("*",)), GseGrant(dirs=("/",)), GseGrant(users=("a",))])
def test_grant_without_one_of_the_lists_covers_nothing(empty: GseGrant) -> None:
    assert not (empty.has_target("a", "") and empty.has_directory("/x") and "a" in empty.users)


def test_stored_directory_that_cannot_be_compared_grants_nothing() -> None:
    assert path_parts("data") is None
    assert not GseGrant(dirs=("data", "")).has_directory("/data")
