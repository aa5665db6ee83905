"""Results that the business sends by a call of its own, for batches with `ack: "async"`.

They lie in the table until the runner has counted them. One that comes before the runner knows that the item was
taken waits there; one that comes twice, or after the item is done, changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import put_new
from tidegate.batches.items import Items
from tidegate.batches.model import Batch
from tidegate.batches.run.answers import ParsedAnswer, read_answer

_KEPT_SECONDS = 7 * 24 * 3600


class ItemResults:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, batch: Batch, index: int, said: dict[str, Any], now: float) -> bool:
        """False if a result of this item waits already: the first counts."""
        key = keys.batch_result(batch.project_id, batch.batch_id, index)
        item = key | {"index": index, "text": json.dumps(said), "expires_at": int(now) + _KEPT_SECONDS}
        try:
            self._table.write(put_new(item))
        except ConditionFailed:
            return False
        return True

    def read(self, batch: Batch, items: Items) -> Iterator[tuple[int, int, ParsedAnswer]]:
        """(index, position, answer) of each result that waits for this runner."""
        for item in self._table.query_all(keys.batch_results(batch.project_id, batch.batch_id), consistent=True):
            index = int(item["index"])
            position = items.position(index)
            if position is not None:
                yield index, position, read_answer(json.loads(item["text"]))

    def forget(self, batch: Batch, indexes: Sequence[int]) -> None:
        if indexes:
            self._table.batch_delete(keys.batch_result(batch.project_id, batch.batch_id, index) for index in indexes)
