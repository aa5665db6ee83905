from __future__ import annotations

from typing import Any

from tidegate.aws.clients import alarms


class CloudWatch:
    def __init__(self, *names: str) -> None:
        self._names = names

    def get_paginator(self, _: str) -> CloudWatch:
        return self

    def paginate(self, *, AlarmNamePrefix: str) -> list[dict[str, Any]]:
        found = [name for name in self._names if name.startswith(AlarmNamePrefix)]
        return [{"MetricAlarms": [{"AlarmName": name, "StateValue": "ALARM"} for name in found]}]


def test_alarms_of_a_stack_whose_name_begins_with_ours_are_not_shown() -> None:
    cloudwatch = CloudWatch("shop-ErrorsAlarm-1A2B3C", "shop-test-ErrorsAlarm-4D5E6F", "shopping-ErrorsAlarm-7G8H9I")
    assert [alarm.name for alarm in alarms(cloudwatch, "shop")] == ["Errors"]
    assert [alarm.name for alarm in alarms(cloudwatch, "shop-test")] == ["Errors"]
