"""Rewrites the examples of the reference. Run `python -m tests.support.tour` after a response has changed."""

from __future__ import annotations

import json

from tests.support.tour.steps import tour
from tidegate.web.reference.document import HERE

if __name__ == "__main__":
    calls = ",\n".join(json.dumps(call, ensure_ascii=False) for call in tour())
    (HERE / "examples.json").write_text(f"[\n{calls}\n]\n", "utf-8")
