from __future__ import annotations

import os

# Functions fail on purpose here, and their log lines would hide the report.
os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "CRITICAL")
