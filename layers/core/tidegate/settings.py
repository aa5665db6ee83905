"""The environment variables of a function, typed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is the upper-case environment variable of the same name."""

    table_name: str = ""
    files_bucket: str = ""
    targets_queue_url: str = ""
    agent_wakeups_queue_url: str = ""
    admission_queue_url: str = ""
    wakeups_queue_url: str = ""
    callbacks_queue_url: str = ""
    callbacks_dead_queue_url: str = ""
    compensation_queue_url: str = ""
    # The compensation poll: its first interval (which is also the step by which it grows), its longest interval, and
    # after how many seconds work counts as overdue.
    compensation_base_seconds: int = 10
    compensation_longest_seconds: int = 300
    compensation_overdue_seconds: int = 30
    notifications_topic_arn: str = ""
    download_job_machine_arn: str = ""
    ingest_machine_arn: str = ""
    export_machine_arn: str = ""
    api_url: str = ""
    batch_machine_arn: str = ""
    release_machine_arn: str = ""
    ws_endpoint: str = ""
    # Where clients connect, if the operator has a custom domain; empty: the endpoint itself.
    ws_url: str = ""
    secrets_prefix: str = "tidegate/"
    # The prefix of the stack's alarm names.
    stack_name: str = ""
    admin_key_sha256: str = ""
    # The SSM parameter that callback secrets are derived from.
    callback_root_name: str = "/tidegate/callback-root"
    key_cache_seconds: int = 10
    # Requests without a valid key that one authorizer passes on, for an answer that says why.
    strangers_per_second: int = 1
    collect_window_seconds: int = 15
    job_timeout_seconds: int = 600
    record_ttl_seconds: int = 1800
    collect_grace_seconds: int = 3
    transfer_engine: str = "agent"
    transfer_max_targets: int = 10_000
    # Requests per second that API Gateway passes to each route of hosts.
    fleet_rate: int = 33
    gse_base_url: str = ""
    gse_tenant_id: str = "default"
    gse_credentials_id: str = "tidegate/gse"
    gse_source_agent_id: str = ""
    gse_source_user: str = "root"
    gse_store_dir: str = "/var/lib/tidegate/store"
    # MB per second; 0: no limit.
    gse_upload_speed: int = 0
    gse_download_speed: int = 0
    url_allow_list: str = ""
    # Limits for one address, over all functions and projects; 0: no limit.
    host_calls_per_second: int = 2000
    host_connections: int = 2000
    # The bucket, or a pattern of bucket names, into which exports may be copied; -: none.
    delivery_bucket: str = "-"
    # The sender of e-mails about finished exports, and a pattern of allowed recipients; -: none.
    email_sender: str = "-"
    email_recipients: str = "-"
    # What exports may read directly, as names or patterns: buckets, tables, an Athena workgroup; -: none.
    source_bucket: str = "-"
    source_table: str = "-"
    source_workgroup: str = "-"
    batch_slice_seconds: int = 600
    batch_lease_seconds: int = 15
    # JSON that overrides values of POLICIES in queue/model.py, such as {"download": {"retries": 5}}.
    request_policies: str = ""
    # No parameter of template.yaml sets the following.
    callback_timeout_seconds: int = 10
    export_pull_parallel: int = 4
    # The most workers that pull and render one export in parallel, each with four pages in flight; 0: stage all pages.
    export_most_workers: int = 8
    gse_source_container_id: str = ""
    # Step Functions allows 25,000 events in an execution; a round needs about ten.
    batch_rounds: int = 1500
    batch_channels: str = "batch"
    # Ended batches are deleted after so many days; 0: never.
    batch_retention_days: int = 365
    # JSON, such as {"no_cookie": 20}.
    channel_capacities: str = ""
    # After waiting this long, a project that runs nothing gets one slot beyond the capacity of a full channel.
    extra_slot_wait_seconds: int = 60

    @property
    def socket_url(self) -> str:
        """The URL at which clients connect to the WebSocket."""
        return self.ws_url or self.ws_endpoint.replace("http", "ws", 1)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Returns the settings from environment variables. A missing or empty variable gets its default.

        Raises ValueError, which names the variable, if a value is not valid.
        """
        source = os.environ if env is None else env
        texts = {field.name: source.get(field.name.upper()) for field in fields(cls)}
        types = {field.name: int if field.type == "int" else str for field in fields(cls)}
        values: dict[str, Any] = {name: _value(name, text, types[name]) for name, text in texts.items() if text}
        return cls(**values)


def _value(name: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"the environment variable {name.upper()} must be a whole number, not {text!r}") from error
