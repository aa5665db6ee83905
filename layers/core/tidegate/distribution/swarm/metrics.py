"""What a Job's swarm moved, as metrics in the log (EMF): no call, and nothing for Jobs without a swarm."""

from __future__ import annotations

from tidegate.distribution.model import Job

# Fewer hosts take a larger part from S3 by nature; the alarm is for swarms that should have worked.
_ENOUGH_HOSTS = 20


def tell_swarm(job: Job) -> None:
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
        # What hosts had already counts too: of a small change, the lists alone may be half of the bytes that moved.
        delivered = figures.origin_bytes + figures.peer_bytes + figures.reused_bytes
        metrics.add_metric("SwarmOriginShare", MetricUnit.Percent, 100 * figures.origin_bytes / max(1, delivered))
    metrics.flush_metrics()
