from __future__ import annotations

import pytest

from tidegate.aws.clients import execution_arn

MACHINE = "arn:aws-cn:states:cn-north-1:123456789012:stateMachine:shop-batch"


@pytest.mark.parametrize("started_by", [MACHINE, f"{MACHINE}:live", f"{MACHINE}:7"])
def test_execution_arn_has_no_alias_or_version(started_by: str) -> None:
    assert execution_arn(started_by, "a-1") == "arn:aws-cn:states:cn-north-1:123456789012:execution:shop-batch:a-1"
