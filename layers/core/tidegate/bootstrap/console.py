"""What the console asks for itself."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.bootstrap.distribution import DistributionWiring
from tidegate.bootstrap.queue import QueueWiring

if TYPE_CHECKING:
    from tidegate.web.console.overview import Overview


class ConsoleWiring(DistributionWiring, QueueWiring):
    @cached_property
    def overview(self) -> Overview:
        from tidegate.web.console.overview import Overview

        return Overview(self.download_lookup, self.request_store, self.clock)
