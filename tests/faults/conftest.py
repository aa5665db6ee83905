from __future__ import annotations

import os

# The sweep makes functions fail on purpose; their log lines would hide the report.
os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "CRITICAL")
