"""Results that the business sends in separate calls, for batches with `ack: "async"`.

They stay in the table until the runner has counted them. A result may arrive before the answer to the item's call; a
repeated result, or one for an item that is done, changes nothing.
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

    def add(self, batch: Batch, index: int, answer: dict[str, Any], now: float) -> bool:
        """Stores a result. False if this item already has one: the first one counts."""
        key = keys.batch_result(batch.project_id, batch.batch_id, index)
        item = key | {"index": index, "text": json.dumps(answer), "expires_at": int(now) + _KEPT_SECONDS}
        try:
            self._table.write(put_new(item))
        except ConditionFailed:
            return False
        return True

    def read(self, batch: Batch, items: Items) -> Iterator[tuple[int, int, ParsedAnswer]]:
        """Yields (index, position, answer) of each stored result for this runner."""
        for item in self._table.query_all(keys.batch_results(batch.project_id, batch.batch_id), consistent=True):
            index = int(item["index"])
            position = items.position(index)
            if position is not None:
                yield index, position, read_answer(json.loads(item["text"]))

    def delete(self, batch: Batch, indexes: Sequence[int]) -> None:
        if indexes:
            self._table.batch_delete(keys.batch_result(batch.project_id, batch.batch_id, index) for index in indexes)
