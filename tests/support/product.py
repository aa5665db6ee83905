"""The product's own code on a deployed stack with full rights, for actions that no route offers."""

from __future__ import annotations

from tests.support.deployed import Deployed
from tidegate.app import App
from tidegate.common.ids import Clock
from tidegate.settings import Settings


def product_on(deployed: Deployed, clock: Clock | None = None) -> App:
    topic, table = deployed.outputs["NotificationsTopicArn"], deployed.outputs["TableName"]
    settings = Settings(table_name=table, notifications_topic_arn=topic)
    app = App(settings, clock) if clock else App(settings)
    app.__dict__.update(dynamodb=deployed.client("dynamodb"), sns=deployed.client("sns"))
    return app
