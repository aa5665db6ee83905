"""One rate for all batches of a business: each runner announces its wanted rate every second and gets a fair share."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import put
from tidegate.batches.model import Batch

# A runner that has not announced its rate for this long loses its share.
_VALID_SECONDS = 5.0
_KEPT_SECONDS = 3600


def fair_rates(limit: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """A runner that wants less than an even share gets what it wants; the others divide the rest evenly."""
    rates: dict[str, float] = {}
    for place, (name, rate) in enumerate(sorted(wanted.items(), key=lambda entry: (entry[1], entry[0]))):
        rates[name] = min(rate, (limit - sum(rates.values())) / (len(wanted) - place))
    return rates


class RateShares:
    def __init__(self, table: Table) -> None:
        self._table = table

    def share(self, batch: Batch, runner: int, wanted_rate: float, limit: float, now: float) -> float:
        """Returns this runner's rate, for a business that accepts `limit` items per second. One write and one query."""
        key = keys.business_rate(batch.project_id, batch.biz_id, batch.batch_id, runner)
        expires = {"until": now + _VALID_SECONDS, "expires_at": int(now) + _KEPT_SECONDS}
        self._table.write(put(key | {"rate": wanted_rate} | expires))
        partition = keys.business_rates(batch.project_id, batch.biz_id)
        running = self._table.query_all(partition, consistent=True)
        wanted = {str(item["sk"]): float(item["rate"]) for item in running if item["until"] > now}
        return fair_rates(limit, wanted | {key["sk"]: wanted_rate})[key["sk"]]

    def release(self, batch: Batch, runner: int) -> None:
        """Makes this runner's share available to the others immediately."""
        self._table.batch_delete([keys.business_rate(batch.project_id, batch.biz_id, batch.batch_id, runner)])
