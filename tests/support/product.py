"""The product's own code on a deployed stack, with the emulator's root rights: for what no route does."""

from __future__ import annotations

from tests.support.deployed import Deployed
from tidegate.app import App
from tidegate.common.ids import Clock
from tidegate.settings import Settings


def product_on(deployed: Deployed, clock: Clock | None = None) -> App:
    topic, table = deployed.outputs["NotificationsTopicArn"], deployed.outputs["TableName"]
    settings = Settings(table_name=table, notifications_topic_arn=topic)
    made = App(settings, clock) if clock else App(settings)
    made.__dict__.update(dynamodb=deployed.client("dynamodb"), sns=deployed.client("sns"))
    return made
