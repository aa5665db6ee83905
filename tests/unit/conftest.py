"""Properties have no deadline: a busy machine is no fault of theirs."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")
