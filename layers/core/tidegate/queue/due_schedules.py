"""What the functions that run schedules once a minute share: they read what is due and try each schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from aws_lambda_powertools import Logger

from tidegate.aws.serialization import Item
from tidegate.aws.table import Table

logger = Logger(service="tidegate", child=True)

# What became due so lately is tried for the first or second time.
_LATELY = 90
_TOGETHER = 8
# As many records as are held in memory at once.
_CHUNK = 64
# Nothing new is begun after so many seconds. What is left stays due, and the function comes again in a minute.
SECONDS = 40.0


def due_items(table: Table, partition: str, now: float) -> Iterator[Item]:
    """What is due in a partition of the sparse index, read page by page.

    What became due lately comes first: schedules that fail and are tried again do not delay those that can run.
    """
    lately = int(now) - _LATELY
    for between in ((lately, int(now)), (0, lately - 1)):
        yield from table.query_all(partition, index="due", sk_between=between)


def fire_all(due: Iterable[Item], fire: Callable[[Item], bool], *, seconds: float = SECONDS) -> int:
    """Tries each, several at once. Returns how many fired.

    One that fails, even because its record cannot be read, is logged and stays due; the others go on.
    """
    ends = time.monotonic() + seconds

    def try_fire(item: Item) -> bool:
        if time.monotonic() >= ends:
            return False
        try:
            return fire(item)
        except Exception:
            logger.exception("a schedule did not fire and is tried again", record=item.get("pk"))
            return False

    fired, left = 0, iter(due)
    while time.monotonic() < ends and (chunk := list(islice(left, _CHUNK))):
        if len(chunk) == 1:
            fired += try_fire(chunk[0])
            continue
        with ThreadPoolExecutor(_TOGETHER) as threads:
            fired += sum(threads.map(try_fire, chunk))
    return fired
