"""Permissions have no versions: an execution that began before a deployment runs old code with the new permissions.

So a release keeps what the one before it used; the next one may remove it. After a release:
`python -m tests.support.released VERSION` writes the file that the next one is compared with.
"""

from __future__ import annotations

import re

import pytest

from local.place import ROOT
from tests.support.released import Permission, covers, permissions, read
from tests.unit.template.test_deployed import resources

RELEASE, RELEASED = read()

# What this release removes although the last one used it, by role, action and resource (patterns), with the reason why
# no old code can miss it. Empty again with the next release.
_AT_ONCE = "1.0.0 published no versions: its functions got the new code and the new role in one call"
REMOVED = {
    Permission(r"Api|Ingest|\w+Transfer|FinishJob", r"secretsmanager:\w+", r".*:secret:tidegate/(gse)?\*"): _AT_ONCE,
    Permission(r"Ingest|PrepareFile", r"s3:\w+", r"\$\{FilesBucket\.Arn\}/\*"): _AT_ONCE,
}


def is_removed_on_purpose(permission: Permission) -> bool:
    role = permission.role.removesuffix("Role")
    return any(
        re.fullmatch(known.role, role)
        and re.fullmatch(known.action, permission.action)
        and re.fullmatch(known.resource, permission.resource)
        for known in REMOVED
    )


@pytest.mark.parametrize("role", sorted({permission.role for permission in RELEASED}))
def test_release_removes_no_permission_that_the_last_one_used(role: str) -> None:
    granted = permissions(resources())
    gone = [each for each in sorted(RELEASED) if each.role == role and not covers(granted, each)]
    assert [each for each in gone if not is_removed_on_purpose(each)] == []


def test_every_exception_is_one() -> None:
    """An exception of an older release would hide the next mistake."""
    granted = permissions(resources())
    gone = [each for each in RELEASED if not covers(granted, each)]
    for known in REMOVED:
        assert any(re.fullmatch(known.resource, each.resource) for each in gone), known


def test_comparison_is_with_the_release_before_this_one() -> None:
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[1] == RELEASE


def test_narrower_permission_does_not_cover_a_wider_one() -> None:
    wide, narrow = (Permission("R", "s3:GetObject", f"${{FilesBucket.Arn}}/{path}") for path in ("*", "content/*"))
    assert covers([wide], narrow)
    assert not covers([narrow], wide)
    assert not covers([wide._replace(role="Other")], narrow)
