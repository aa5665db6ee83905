from __future__ import annotations

import os

# The sweep makes functions fail on purpose; what they log of it would bury the report.
os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "CRITICAL")
