"""One rate for all batches of a business: each runner says once a second what it wants and takes its fair share."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import put
from tidegate.batches.model import Batch

# A runner that was silent this long has no share any more.
_SILENCE_SECONDS = 5.0
_KEPT_SECONDS = 3600


def fair_rates(limit: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """Who wants less than an even share gets what it wants; the others share what is left."""
    rates: dict[str, float] = {}
    for place, (name, rate) in enumerate(sorted(wanted.items(), key=lambda entry: (entry[1], entry[0]))):
        rates[name] = min(rate, (limit - sum(rates.values())) / (len(wanted) - place))
    return rates


class RateShares:
    def __init__(self, table: Table) -> None:
        self._table = table

    def share(self, batch: Batch, runner: int, wanted_rate: float, limit: float, now: float) -> float:
        """The rate of this runner now, of a business that takes `limit` items a second. One write, one read."""
        here = keys.business_rate(batch.project_id, batch.biz_id, batch.batch_id, runner)
        expires = {"until": now + _SILENCE_SECONDS, "expires_at": int(now) + _KEPT_SECONDS}
        self._table.write(put(here | {"rate": wanted_rate} | expires))
        partition = keys.business_rates(batch.project_id, batch.biz_id)
        running = self._table.query_all(partition, consistent=True)
        wanted = {str(item["sk"]): float(item["rate"]) for item in running if item["until"] > now}
        return fair_rates(limit, wanted | {here["sk"]: wanted_rate})[here["sk"]]

    def leave(self, batch: Batch, runner: int) -> None:
        """Gives the share to the others at once."""
        self._table.batch_delete([keys.business_rate(batch.project_id, batch.biz_id, batch.batch_id, runner)])
