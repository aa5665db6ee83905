"""Keys that were looked up a moment ago, so that a busy client costs the table one read in a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tidegate.common.ids import Clock
from tidegate.projects.model import ApiKey, hash_key

MOST_KEYS = 1000


class KnownKeys:
    """A key that was good stays good for `seconds` in this process: that is how long a revocation may take.

    It is kept here and not by API Gateway, whose cache needs the header as its identity source: a request without one
    would then be answered by the gateway itself, and not as problem+json. A key that is not known is never kept.
    """

    def __init__(self, describe: Callable[[str], ApiKey | None], clock: Clock, seconds: int) -> None:
        self._describe = describe
        self._clock = clock
        self._seconds = seconds
        self._kept: OrderedDict[str, tuple[float, ApiKey]] = OrderedDict()

    def describe(self, key: str) -> ApiKey | None:
        # By hash: a dump of this process should show no key.
        name, now = hash_key(key), self._clock().timestamp()
        until, known = self._kept.get(name, (0.0, None))
        if known is not None and now < until and known.is_active(self._clock()):
            return known
        self._kept.pop(name, None)
        known = self._describe(key)
        if known is not None and self._seconds:
            self._kept[name] = (now + self._seconds, known)
            if len(self._kept) > MOST_KEYS:
                self._kept.popitem(last=False)
        return known
