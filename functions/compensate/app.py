"""The compensation poll: runs for each tick in its queue, and each minute, to restart the poll if a tick was lost."""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from tidegate.app import app
from tidegate.compensation.poll import PollReport, PollState
from tidegate.queue.control import ChannelStats

logger = Logger(service="tidegate")
metrics = Metrics(service="compensation")


@metrics.log_metrics
def handler(event: dict[str, Any], context: Any) -> None:
    if "Records" not in event:
        app().compensation.revive()
        _report_state()
        return
    for record in event["Records"]:
        report = app().compensation.tick(PollState.from_data(json.loads(record["body"])))
        if report:
            _report_poll(report)


def _report_state() -> None:
    """Logs and writes metrics of the queues, once a minute."""
    poll, queue_size = app().compensation.status()
    logger.info("compensation", queue_size=queue_size, interval_s=poll.interval_s, state=poll.as_data())
    metrics.add_metric("CompensationInterval", MetricUnit.Seconds, poll.interval_s)
    metrics.add_metric("StartQueueSize", MetricUnit.Count, queue_size)
    channels = app().queue.channels.stats()
    metrics.add_metric("WaitingRequests", MetricUnit.Count, sum(channel.queued for channel in channels))
    for channel in channels:
        _report_channel(channel)


def _report_channel(channel: ChannelStats) -> None:
    """Writes a channel's metrics while the channel has work. CloudWatch charges for each hour with data."""
    if not channel.queued and not channel.running:
        return
    figures = EphemeralMetrics(service="queue")
    figures.add_dimension("channel", channel.channel)
    figures.add_metric("ChannelWaiting", MetricUnit.Count, channel.queued)
    figures.add_metric("ChannelRunning", MetricUnit.Count, channel.running)
    figures.add_metric("ChannelOldestWait", MetricUnit.Seconds, channel.oldest_wait_s)
    figures.flush_metrics()


def _report_poll(report: PollReport) -> None:
    logger.info("compensated", found=report.found, compensated=report.compensated, oldest=report.oldest_overdue_s)
    metrics.add_metric("CompensationFound", MetricUnit.Count, report.found)
    metrics.add_metric("Compensated", MetricUnit.Count, report.compensated)
    metrics.add_metric("OldestOverdue", MetricUnit.Seconds, report.oldest_overdue_s)
