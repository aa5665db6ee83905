"""The scenarios of the fault sweep."""

from __future__ import annotations

from tests.faults.scenarios import (
    batch,
    callback,
    compensation,
    distribution,
    enrolment,
    export,
    host_end,
    ingest,
    job_control,
    key_end,
    releases,
    schedules,
    subscription,
    upload,
)
from tests.faults.sweep import Scenario

ALL: tuple[Scenario, ...] = (
    upload.SCENARIO,
    upload.IN_PARTS,
    enrolment.SCENARIO,
    host_end.SCENARIO,
    distribution.SCENARIO,
    job_control.WAVES,
    job_control.CONTROL,
    job_control.PREHEAT,
    ingest.SCENARIO,
    ingest.IN_PARTS,
    subscription.SCENARIO,
    export.SCENARIO,
    export.IN_RANGES,
    batch.SCENARIO,
    batch.SEVERAL_RUNNERS,
    batch.OVER_LIMIT,
    callback.SCENARIO,
    key_end.SCENARIO,
    compensation.SCENARIO,
    schedules.EXPORT,
    schedules.BATCH,
    upload.IN_TURNS,
    batch.WITH_RESULTS,
    batch.ASIDE,
    batch.RESULTS_ASIDE,
    batch.DELETED,
    releases.WAVES,
    releases.BAD,
    releases.ROLLBACK,
)
