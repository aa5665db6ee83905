"""An SQS queue that is subscribed to the deployed stack's SNS topic."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.deployed import Deployed


class TopicSubscriber:
    def __init__(self, sqs: Any, url: str) -> None:
        self._sqs = sqs
        self._url = url
        self._received: list[dict[str, Any]] = []

    def received(self) -> list[dict[str, Any]]:
        """All notifications so far."""
        parameters = {"QueueUrl": self._url, "MaxNumberOfMessages": 10}
        while messages := self._sqs.receive_message(**parameters).get("Messages"):
            for message in messages:
                self._received.append(json.loads(message["Body"]))
                self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        return self._received


@contextmanager
def topic_subscriber(deployed: Deployed, **wanted: list[str]) -> Iterator[TopicSubscriber]:
    """Subscribes a queue with this filter policy: `status=["failed"], project_id=[…]`."""
    sqs, sns = deployed.client("sqs"), deployed.client("sns")
    url = sqs.create_queue(QueueName=f"subscriber-{uuid.uuid4().hex[:8]}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    statement = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement | {"Resource": arn}]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    subscription = sns.subscribe(
        TopicArn=deployed.outputs["NotificationsTopicArn"],
        Protocol="sqs",
        Endpoint=arn,
        Attributes={"RawMessageDelivery": "true", "FilterPolicy": json.dumps(wanted)},
        ReturnSubscriptionArn=True,
    )["SubscriptionArn"]
    try:
        yield TopicSubscriber(sqs, url)
    finally:
        sns.unsubscribe(SubscriptionArn=subscription)
        sqs.delete_queue(QueueUrl=url)
