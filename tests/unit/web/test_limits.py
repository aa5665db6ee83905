"""Every number that a caller can set is a limit with a test that shows it acting, or is known to be none."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tidegate.web
from tests.support.template import ROOT, timeout_of
from tidegate.batches import slice as batch_slice
from tidegate.batches.model import LONGEST_ITEM_TIMEOUT, LONGEST_SYNC_ITEM_TIMEOUT
from tidegate.settings import Settings
from tidegate.web.exports import ExportBody
from tidegate.web.schemas import Body

TESTS = Path(__file__).parents[2]
BATCHES, EXPORTS, QUEUE = "integration/batches", "integration/exports", "integration/queue"
FLEET, INGEST, PROJECTS = "integration/distribution", "integration/ingest", "integration/projects"
BY_PRIORITY = f"{QUEUE}/test_admission.py::test_priority_of_each_kind_of_work_is_that_of_its_request"
CHANGED_FAILURES = f"{BATCHES}/test_slice_rate.py::test_changed_limit_of_failures_stops_running_batch"

# The field of a body: the test that shows what happens at the limit.
BACKOFF = "unit/batches/test_run_state.py::test_backoff_grows_to_its_limit_with_jitter"
CHANGED = f"{BATCHES}/test_business_down.py::test_changed_options_act_while_the_batch_runs"
SHOWN = {
    **{f"BackoffBody.{name}": BACKOFF for name in ("factor", "max", "jitter")},
    "BackoffBody.base": CHANGED,
    **{f"BatchPatch.{name}": CHANGED for name in ("retries", "retry_delay", "item_timeout")},
    "BatchPatch.concurrency": f"{BATCHES}/test_business_down.py::test_changed_concurrency_acts_while_the_batch_runs",
    "BatchBody.total": f"{BATCHES}/test_slice_rate.py::test_1000_items_at_100_per_second_take_10_seconds",
    "BatchBody.rate": f"{BATCHES}/test_slice_rate.py::test_1000_items_at_100_per_second_take_10_seconds",
    "BatchBody.concurrency": f"{BATCHES}/test_slice_answers.py::test_concurrency_limits_calls_under_way",
    "BatchBody.start_index": f"{BATCHES}/test_slice_rate.py::test_ten_billion_items_need_one_small_record",
    "BatchBody.max_errors": f"{BATCHES}/test_slice_answers.py::test_max_errors_stops_batch_with_reason",
    "BatchBody.retries": f"{BATCHES}/test_slice_answers.py::test_answer_after_item_timeout_is_a_failed_attempt",
    "BatchBody.retry_delay": f"{BATCHES}/test_slice_carries.py::test_batch_with_distant_retry_sleeps_outside_function",
    "BatchBody.priority": BY_PRIORITY,
    "BatchBody.max_failed": f"{BATCHES}/test_slice_carries.py::test_failures_beyond_limit_stop_the_batch",
    "BatchBody.max_failed_percent": f"{BATCHES}/test_slice_carries.py::test_failures_beyond_limit_stop_the_batch",
    "BatchBody.item_timeout": f"{BATCHES}/test_slice_answers.py::test_answer_after_item_timeout_is_a_failed_attempt",
    "BatchBody.items_per_call": f"{BATCHES}/test_slice_carries.py::test_grouped_items_are_answered_one_by_one",
    "BatchBody.runners": f"{BATCHES}/test_runners.py::test_two_runners_call_each_item_once_and_share_rate",
    "BatchBody.progress_every_items": (
        f"{BATCHES}/test_batch_api.py::test_progress_webhook_is_sent_once_per_milestone_across_slices"
    ),
    "BatchBody.progress_every_percent": (
        f"{BATCHES}/test_batch_api.py::test_progress_webhook_is_sent_once_per_milestone_across_slices"
    ),
    "BatchPatch.rate": f"{BATCHES}/test_slice_rate.py::test_changed_rate_applies_to_running_batch",
    "BatchPatch.max_errors": CHANGED_FAILURES,
    "BatchPatch.max_failed": CHANGED_FAILURES,
    "BatchPatch.max_failed_percent": CHANGED_FAILURES,
    "BusinessBody.rate": f"{BATCHES}/test_slice_carries.py::test_batches_of_one_business_share_its_rate",
    "DryRunBody.items": "workflow/test_batch_machine.py::test_dry_run_calls_first_items_and_counts_nothing",
    "EnrolmentBody.uses": f"{FLEET}/fleet/test_enrolment.py::test_token_has_a_limited_number_of_uses",
    "EnrolmentBody.expires_in": f"{FLEET}/fleet/test_enrolment.py::test_expired_token_is_refused",
    "TransferBody.limit_rate": "unit/client/agent/test_service.py::test_limit_of_a_job_does_not_slow_down_others",
    "WaveBody.percent": f"{FLEET}/test_waves.py::test_first_wave_goes_to_its_share_only",
    "WaveBody.wait_s": f"{FLEET}/test_waves.py::test_waves_follow_each_other_after_their_waits",
    "WaveBody.max_failed_percent": f"{FLEET}/test_waves.py::test_wave_fails_by_the_percentage_that_it_allows",
    "ReleaseReport.placed": (
        "integration/releases/test_releases.py::test_files_of_a_host_are_those_of_the_revision_in_place"
    ),
    "ReleaseBody.keep": "unit/client/agent/test_releases.py::test_contents_of_older_revisions_are_removed",
    "HealthBody.timeout_s": (
        "unit/client/agent/test_releases.py::test_failing_health_check_brings_the_former_files_back"
    ),
    "HealthBody.soak_s": "unit/releases/test_model.py::test_wave_waits_for_its_soak_time",
    "RollbackBody.to": "integration/releases/test_releases.py::test_rollback_to_a_named_revision",
    "ExportBody.step": f"{EXPORTS}/test_pulling.py::test_step_100_and_total_250_request_three_pages",
    "ExportBody.max_exec_time": f"{EXPORTS}/test_running.py::test_export_past_max_exec_time_gets_three_attempts",
    "ExportBody.priority": BY_PRIORITY,
    "ExportBody.rows_per_file": f"{EXPORTS}/test_running.py::test_rows_per_file_makes_a_zip",
    "ExportBody.parallel": f"{EXPORTS}/test_pulling.py::test_no_more_requests_than_wanted_are_in_flight",
    "ExportBody.source_rate": f"{EXPORTS}/test_source_rate.py::test_requests_to_a_host_keep_to_its_rate",
    "ExportBody.source_timeout": f"{EXPORTS}/test_pulling.py::test_page_slower_than_source_timeout_fails",
    "SyncBody.source_timeout": f"{EXPORTS}/test_pulling.py::test_page_slower_than_source_timeout_fails",
    "ExportBody.default_width": "unit/exports/rendering/test_xlsx_layout.py::test_leaf_styles_reach_the_cells",
    "ExportBody.default_height": (
        "unit/exports/rendering/test_xlsx_layout.py::test_rows_are_as_high_as_their_wrapped_texts"
    ),
    "SyncBody.max_exec_time": f"{EXPORTS}/test_sync.py::test_export_not_done_within_its_max_exec_time_is_use_async",
    "SyncBody.parallel": f"{EXPORTS}/test_pulling.py::test_no_more_requests_than_wanted_are_in_flight",
    "SyncBody.source_rate": f"{EXPORTS}/test_sync.py::test_requests_keep_to_the_source_rate",
    "VisibleBody.start": f"{EXPORTS}/test_masks.py::test_project_masks_show_as_many_characters_as_set",
    "VisibleBody.end": f"{EXPORTS}/test_masks.py::test_project_masks_show_as_many_characters_as_set",
    "FileBody.priority": BY_PRIORITY,
    "PartsBody.numbers": "integration/files/test_multipart.py::test_part_numbers_beyond_the_last_are_refused",
    "PartsBody.sizes": "integration/files/test_upload_quota.py::test_parts_with_their_lengths_count_exactly",
    "SubscriptionBody.concurrency": f"{INGEST}/test_subscriptions.py::test_subscription_limits_its_parallel_downloads",
    "SubscriptionBody.priority": BY_PRIORITY,
    "SubscriptionChanges.concurrency": (
        f"{INGEST}/test_subscriptions.py::test_subscription_limits_its_parallel_downloads"
    ),
    "SubscriptionChanges.priority": BY_PRIORITY,
    "KeyBody.expires_in": f"{PROJECTS}/test_key_lifecycle.py::test_expired_key_is_401_and_listed_as_expired",
    "AdminKeyBody.expires_in": f"{PROJECTS}/test_key_lifecycle.py::test_expired_key_is_401_and_listed_as_expired",
    "RotateBody.overlap_s": (
        f"{PROJECTS}/test_key_lifecycle.py::test_rotated_key_works_for_the_overlap_and_not_longer"
    ),
    "QuotasBody.stored_bytes": f"{QUEUE}/test_quotas.py::test_stored_bytes_count_each_content_once_up_to_the_quota",
    "QuotasBody.queued": f"{QUEUE}/test_quotas.py::test_queued_requests_over_the_quota_are_refused",
    "QuotasBody.requests_per_s": f"{QUEUE}/test_quotas.py::test_requests_over_the_rate_are_refused_for_a_second",
    "QuotasBody.export_schedules": f"{EXPORTS}/test_schedule_changes.py::test_schedule_over_the_quota_is_refused",
    "QuotasBody.batch_schedules": f"{BATCHES}/test_schedule_changes.py::test_quota_limits_number_of_schedules",
    "QuotasBody.subscriptions": f"{INGEST}/test_subscriptions.py::test_subscription_over_the_quota_is_refused",
    "QuotasBody.businesses": f"{PROJECTS}/test_project_changes.py::test_business_over_the_quota_is_refused",
    "QuotasBody.batches": f"{BATCHES}/test_delete.py::test_batch_over_the_quota_is_refused_until_one_is_deleted",
    "QuotasBody.unstarted_batches": (
        f"{BATCHES}/test_unstarted_batches.py::test_batch_over_the_quota_is_refused_until_another_is_started"
    ),
    "QuotasBody.open_uploads": (
        "integration/files/test_upload_quota.py::test_open_uploads_over_the_quota_are_refused_until_one_ends"
    ),
    "QuotasBody.slow_calls": f"{PROJECTS}/test_slow_calls.py::test_operator_sets_the_limit",
    "QuotasBody.running": f"{PROJECTS}/test_default_quotas.py::test_project_runs_no_more_at_once_than_its_quota",
    "QuotasBody.runner_hours_per_day": (
        f"{PROJECTS}/test_default_quotas.py::test_request_waits_while_the_runner_hours_are_used_up"
    ),
    "QuotasBody.egress_bytes_per_day": (
        f"{PROJECTS}/test_default_quotas.py::test_job_over_the_egress_quota_fails_with_that_code"
    ),
    "QuotasBody.targets_per_day": (
        f"{PROJECTS}/test_default_quotas.py::test_submit_over_a_quota_of_the_day_is_429_until_midnight"
    ),
    "QuotasBody.outgoing_calls_per_day": (
        f"{BATCHES}/test_runner_slots.py::test_batch_makes_no_more_calls_in_a_day_than_its_quota"
    ),
    "QuotasBody.share": f"{QUEUE}/test_fair_admission.py::test_share_set_by_an_operator_replaces_the_fair_split",
    "PolitenessBody.connections": (
        f"{INGEST}/test_politeness.py::test_file_is_read_over_as_many_connections_as_wanted"
    ),
    "PolitenessBody.bytes_per_s": f"{INGEST}/test_politeness.py::test_file_is_not_read_faster_than_wanted",
    "PolitenessBody.delay_s": f"{INGEST}/test_politeness.py::test_requests_of_one_file_keep_their_delay",
    "PolitenessBody.host_downloads": f"{INGEST}/test_politeness.py::test_downloads_from_a_host_stay_within_the_limit",
    "BulkBody.limit": f"{INGEST}/test_library_requests.py::test_bulk_acts_on_all_requests_that_match",
    "BulkBody.priority": f"{INGEST}/test_library_requests.py::test_bulk_acts_on_all_requests_that_match",
    "PriorityBody.priority": f"{QUEUE}/test_admission.py::test_prioritized_request_runs_next",
    "RequestBody.priority": BY_PRIORITY,
}
# Names, versions, sizes and reports: nothing waits for them or stops at them.
NO_LIMITS = {
    *("biz_id", "app_id", "merchant_id", "merchant_type", "revision", "index", "attempt", "number", "size"),
    *("code", "error_code", "progress", "speed", "origin_bytes", "peer_bytes", "bad_pieces", "reused_bytes"),
    # The host limits itself, and tells the others.
    "upload_mbit",
}


def bodies(kind: type[Body] = Body) -> Iterator[type[Body]]:
    for each in kind.__subclasses__():
        yield each
        yield from bodies(each)


def holds_number(schema: dict[str, Any]) -> bool:
    inner = [*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")]
    return schema.get("type") in ("integer", "number") or any(
        holds_number(each) for each in inner if isinstance(each, dict)
    )


def own_numbers(body: type[Body]) -> Iterator[str]:
    """The numbers of a body, under the name of the class that first has them."""
    for name, schema in body.model_json_schema().get("properties", {}).items():
        if holds_number(schema) and name not in NO_LIMITS:
            owners = [each for each in body.__mro__ if name in getattr(each, "__annotations__", {})]
            yield f"{owners[-1].__name__}.{name}"


def test_every_number_of_a_request_body_is_shown_to_act() -> None:
    for module in pkgutil.walk_packages(tidegate.web.__path__, "tidegate.web."):
        importlib.import_module(module.name)
    product = [body for body in bodies() if body.__module__.startswith("tidegate.") and "Change" not in body.__name__]
    numbers = {number for body in product for number in own_numbers(body)}
    assert {"BatchBody.item_timeout", "ExportBody.source_rate"} <= numbers, "the search finds nothing"
    assert sorted(numbers - set(SHOWN)) == [], "show with a test that each of these acts, and name it here"


def test_every_test_that_shows_a_limit_exists() -> None:
    for place in set(SHOWN.values()):
        path, _, name = place.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(), place


def machine(name: str) -> Any:
    return json.loads((ROOT / f"statemachines/{name}.asl.json").read_text())


def test_functions_and_machines_may_run_as_long_as_the_api_accepts() -> None:
    """A slice ends early enough for the longest answer, the function after it, and the machine's step last."""
    function = timeout_of("run_batch_slice")
    step = machine("batch")["States"]["RunSlice"]["TimeoutSeconds"]
    last_answer = batch_slice._LONGEST_SLICE
    calls = batch_slice.seconds_to_call(Settings().batch_slice_seconds, LONGEST_SYNC_ITEM_TIMEOUT)
    assert calls >= 240
    assert LONGEST_SYNC_ITEM_TIMEOUT + calls <= last_answer
    assert last_answer + 30 <= function <= step
    assert LONGEST_ITEM_TIMEOUT > LONGEST_SYNC_ITEM_TIMEOUT, "refused unless asynchronous"
    longest_export = ExportBody.model_json_schema()["properties"]["max_exec_time"]["maximum"]
    assert longest_export < machine("export")["TimeoutSeconds"]
