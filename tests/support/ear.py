"""A subscriber of the deployed stack's topic: what is told, as anyone with a queue would hear it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.deployed import Deployed


class Ear:
    def __init__(self, sqs: Any, url: str) -> None:
        self._sqs = sqs
        self._url = url
        self._heard: list[dict[str, Any]] = []

    def heard(self) -> list[dict[str, Any]]:
        """All that was told so far."""
        listened = {"QueueUrl": self._url, "MaxNumberOfMessages": 10}
        while got := self._sqs.receive_message(**listened).get("Messages"):
            for message in got:
                self._heard.append(json.loads(message["Body"]))
                self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        return self._heard


@contextmanager
def ear(deployed: Deployed, **wanted: list[str]) -> Iterator[Ear]:
    """Hears what the filter lets through: `status=["failed"], project_id=[…]`."""
    sqs, sns = deployed.client("sqs"), deployed.client("sns")
    url = sqs.create_queue(QueueName=f"ear-{uuid.uuid4().hex[:8]}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    may = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
    allowed = json.dumps({"Version": "2012-10-17", "Statement": [may | {"Resource": arn}]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": allowed})
    subscription = sns.subscribe(
        TopicArn=deployed.outputs["NotificationsTopicArn"],
        Protocol="sqs",
        Endpoint=arn,
        Attributes={"RawMessageDelivery": "true", "FilterPolicy": json.dumps(wanted)},
        ReturnSubscriptionArn=True,
    )["SubscriptionArn"]
    try:
        yield Ear(sqs, url)
    finally:
        sns.unsubscribe(SubscriptionArn=subscription)
        sqs.delete_queue(QueueUrl=url)
