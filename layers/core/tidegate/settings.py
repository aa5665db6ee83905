"""The environment of a function, read once and lazily."""

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
    # The poll for overdue work: its first interval (and by how much it grows), its longest, and when work is overdue.
    compensation_base_seconds: int = 10
    compensation_longest_seconds: int = 300
    compensation_overdue_seconds: int = 30
    notifications_topic_arn: str = ""
    download_job_machine_arn: str = ""
    ingest_machine_arn: str = ""
    export_machine_arn: str = ""
    api_url: str = ""
    batch_machine_arn: str = ""
    ws_endpoint: str = ""
    # Where clients connect, if not at the endpoint itself: a domain of the operator's own.
    ws_url: str = ""
    secrets_prefix: str = "tidegate/"
    # For the names of its alarms.
    stack_name: str = ""
    admin_key_sha256: str = ""
    # The SSM parameter that callback secrets are derived from.
    callback_root_name: str = "/tidegate/callback-root"
    key_cache_seconds: int = 10
    collect_window_seconds: int = 15
    job_timeout_seconds: int = 600
    record_ttl_seconds: int = 1800
    collect_grace_seconds: int = 3
    transfer_engine: str = "agent"
    transfer_max_targets: int = 10_000
    gse_base_url: str = ""
    gse_tenant_id: str = "default"
    gse_credentials_id: str = "tidegate/gse"
    gse_source_agent_id: str = ""
    gse_source_user: str = "root"
    gse_store_dir: str = "/var/lib/tidegate/store"
    # MB a second, 0 for no limit.
    gse_upload_speed: int = 0
    gse_download_speed: int = 0
    url_allow_list: str = ""
    # What all functions together may send to one address, over all projects; 0 for no limit.
    host_calls_per_second: int = 2000
    host_connections: int = 2000
    # The bucket, or a pattern of names, into which exports may be copied; -: none.
    delivery_bucket: str = "-"
    # The address that mails about finished exports come from, and a pattern of those they may go to; -: none.
    email_sender: str = "-"
    email_recipients: str = "-"
    # What exports may read without an endpoint, by names or patterns: buckets, tables, an Athena workgroup; -: none.
    source_bucket: str = "-"
    source_table: str = "-"
    source_workgroup: str = "-"
    batch_slice_seconds: int = 240
    batch_lease_seconds: int = 15
    # JSON: what differs from queue/policies.py, e.g. {"download": {"retries": 5}}.
    request_policies: str = ""
    # What follows is set by no parameter of template.yaml.
    callback_timeout_seconds: int = 10
    export_pull_parallel: int = 4
    # Workers that pull and render one export side by side, each with four pages in flight; 0: pages are staged.
    export_most_workers: int = 8
    gse_source_container_id: str = ""
    # Step Functions keeps 25,000 events of an execution; a round costs about ten.
    batch_rounds: int = 1500
    batch_channels: str = "batch"
    # JSON, e.g. {"no_cookie": 20}.
    channel_capacities: str = ""
    # A project that runs nothing gets a slot beyond a full channel's capacity after waiting this long.
    extra_slot_wait_seconds: int = 60

    @property
    def socket_url(self) -> str:
        """Where clients connect to the WebSocket."""
        return self.ws_url or self.ws_endpoint.replace("http", "ws", 1)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        source = os.environ if env is None else env
        given = {field.name: source.get(field.name.upper()) for field in fields(cls)}
        types = {field.name: int if field.type == "int" else str for field in fields(cls)}
        values: dict[str, Any] = {name: types[name](value) for name, value in given.items() if value}
        return cls(**values)
