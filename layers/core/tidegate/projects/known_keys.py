"""A cache of keys that were valid a moment ago, so that a busy client does not cost one table read per request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tidegate.common.ids import Clock
from tidegate.projects.model import ApiKey, hash_key

MOST_KEYS = 1000


class KnownKeys:
    """Keeps a valid key for `seconds` in this process, so a revocation may take that long. Unknown keys are not kept.

    API Gateway's own cache cannot be used: it needs the header as identity source, and would answer a request without
    one by itself, not as problem+json.
    """

    def __init__(self, describe: Callable[[str], ApiKey | None], clock: Clock, seconds: int) -> None:
        self._describe = describe
        self._clock = clock
        self._seconds = seconds
        self._kept: OrderedDict[str, tuple[float, ApiKey]] = OrderedDict()

    def describe(self, key: str) -> ApiKey | None:
        # By hash, so that a memory dump shows no key in this dict.
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
