"""Metrics of a Job's swarm, written to the log (EMF), so that they need no call. None for Jobs without a swarm."""

from __future__ import annotations

from tidegate.distribution.model import Job

# Small swarms need a larger part from S3; the alarm is for swarms that should have worked.
_ENOUGH_HOSTS = 20


def publish_swarm_metrics(job: Job) -> None:
    figures = job.swarm
    if not figures.hosts:
        return
    from aws_lambda_powertools import Metrics
    from aws_lambda_powertools.metrics import MetricUnit

    metrics = Metrics(service="distribution")
    metrics.add_metric("SwarmOriginBytes", MetricUnit.Bytes, figures.origin_bytes)
    metrics.add_metric("SwarmPeerBytes", MetricUnit.Bytes, figures.peer_bytes)
    metrics.add_metric("SwarmBadPieces", MetricUnit.Count, figures.bad_pieces)
    metrics.add_metric("SwarmFallbacks", MetricUnit.Count, figures.fallbacks)
    if figures.hosts >= _ENOUGH_HOSTS:
        # Reused bytes count too: for a small change, the piece lists alone may be half of the bytes transferred.
        delivered = figures.origin_bytes + figures.peer_bytes + figures.reused_bytes
        metrics.add_metric("SwarmOriginShare", MetricUnit.Percent, 100 * figures.origin_bytes / max(1, delivered))
    metrics.flush_metrics()
