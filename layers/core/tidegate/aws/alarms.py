"""The stack's CloudWatch alarms and their states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.common.ids import iso


@dataclass(frozen=True, slots=True)
class Alarm:
    """`state` is ok, alarm or insufficient_data."""

    name: str
    state: str
    description: str
    reason: str
    since: str | None


def alarms(client: Any, stack_name: str) -> Iterator[Alarm]:
    """Every alarm of the stack. CloudFormation names one `{stack}-{logical id}-{random}`.

    `Alarm.name` is the logical id without "Alarm" at its end.
    """
    prefix = f"{stack_name}-"
    for page in client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=prefix):
        for alarm in page["MetricAlarms"]:
            # A logical id has no hyphen: this is an alarm of another stack, whose name begins with ours.
            if alarm["AlarmName"].removeprefix(prefix).count("-") > 1:
                continue
            since = alarm.get("StateUpdatedTimestamp")
            yield Alarm(
                name=alarm["AlarmName"].removeprefix(prefix).rsplit("-", 1)[0].removesuffix("Alarm"),
                state=alarm["StateValue"].lower(),
                description=alarm.get("AlarmDescription", ""),
                reason=alarm.get("StateReason", ""),
                since=iso(since) if since else None,
            )
