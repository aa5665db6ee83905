"""A caller who reads everything again and again, also while functions die: what is shown is a part of the promises."""

from __future__ import annotations

import random
import threading
from typing import Any

from tests.soak.caller import Caller
from tests.soak.ledger import ANSWERS, BATCH, FINAL, JOB, Asked

FINAL_STAYS = "final states never change"
ADD_UP = "counts that callers read add up"


class Reader:
    def __init__(self, caller: Caller, seed: int) -> None:
        self._caller = caller
        self._ledger = caller.ledger
        self._rng = random.Random(f"reader {seed}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            ended = [asked for asked in list(self._ledger.asked.values()) if asked.over]
            for asked in (*self._ledger.open(), *self._rng.sample(ended, min(3, len(ended)))):
                if self._stop.is_set():
                    return
                try:
                    self.read(asked)
                except Exception as error:
                    self._ledger.breaks(ANSWERS, f"GET {asked.path}: {error!r}")
            self._stop.wait(0.3)

    def read(self, asked: Asked) -> dict[str, Any]:
        goes_on = asked.goes_on
        was_over = asked.over
        status, shown = self._caller.call("GET", asked.path, allowed=(404,))
        self._ledger.count("records read")
        if status == 404:
            self._ledger.breaks("nothing accepted is lost", f"{asked.record_id} was accepted, and is not found")
            return {}
        state = str(shown["status"])
        if was_over and state != asked.states[-1]:
            self._ledger.breaks(FINAL_STAYS, f"{asked.record_id}: {asked.states[-1]}, then {state}")
        if asked.states[-1:] != [state]:
            asked.states.append(state)
            self._ledger.moves()
        if wrong := sums(asked, shown):
            self._ledger.breaks(ADD_UP, f"{asked.record_id}: {wrong}")
        if asked.kind == BATCH and not goes_on and _went_back(asked.last, shown):
            self._ledger.breaks(ADD_UP, f"{asked.record_id}: {asked.last['progress']}, then {shown['progress']}")
        if asked.last.get("progress") != shown.get("progress"):
            self._ledger.moves()
        asked.last = dict(shown)
        return asked.last


def _went_back(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return bool(before) and int(now["progress"]["offset"]) < int(before["progress"]["offset"])


def sums(asked: Asked, shown: dict[str, Any]) -> str:
    """What does not add up; empty if all does."""
    if asked.kind == BATCH:
        progress = shown["progress"]
        done = progress["succeeded"] + progress["failed"] + progress["abandoned"]
        if done != progress["processed"] or progress["processed"] > asked.about["total"]:
            return str(progress)
    if asked.kind == JOB and shown["status"] in FINAL[JOB]:
        counts = dict(shown["counts"])
        total = counts.pop("total")
        parts = ("success", "failed", "timeout", "cancelled", "superseded", "downloading")
        if sum(int(counts.get(name) or 0) for name in parts) != total:
            return str(shown["counts"])
    return ""
