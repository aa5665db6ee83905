"""What every function may need: settings, clients, the clock. Each is made when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.domain.ids import Clock
from tidegate.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_sns import SNSClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_stepfunctions import SFNClient

    from tidegate.adapters.dynamo.projects import ProjectRepository
    from tidegate.adapters.dynamo.table import Table
    from tidegate.adapters.dynamo.usage import UsageRepository
    from tidegate.services.compensate import DueHandler
    from tidegate.services.rate_limit import RateLimiter
    from tidegate.services.rate_quotas import RateQuotas


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Base:
    def __init__(self, settings: Settings | None = None, clock: Clock = _utc_now) -> None:
        self.settings = settings or Settings.from_env()
        self.clock = clock

    def record_lookups(self) -> dict[str, Callable[[str, str], dict[str, Any] | None]]:
        """By the prefix of ids: (project_id, record_id) → the record as its route shows it, or None."""
        return {}

    @cached_property
    def dynamodb(self) -> DynamoDBClient:
        from tidegate.adapters.clients import client

        made: DynamoDBClient = client("dynamodb")
        return made

    @cached_property
    def s3(self) -> S3Client:
        from tidegate.adapters.clients import client

        made: S3Client = client("s3")
        return made

    @cached_property
    def sqs(self) -> SQSClient:
        from tidegate.adapters.clients import client

        made: SQSClient = client("sqs")
        return made

    @cached_property
    def sns(self) -> SNSClient:
        from tidegate.adapters.clients import client

        made: SNSClient = client("sns")
        return made

    @cached_property
    def sfn(self) -> SFNClient:
        from tidegate.adapters.clients import client

        made: SFNClient = client("stepfunctions")
        return made

    @cached_property
    def secretsmanager(self) -> SecretsManagerClient:
        from tidegate.adapters.clients import client

        made: SecretsManagerClient = client("secretsmanager")
        return made

    @cached_property
    def ssm(self) -> SSMClient:
        from tidegate.adapters.clients import client

        made: SSMClient = client("ssm")
        return made

    @cached_property
    def table(self) -> Table:
        from tidegate.adapters.dynamo.table import Table

        return Table(self.dynamodb, self.settings.table_name)

    @cached_property
    def project_store(self) -> ProjectRepository:
        from tidegate.adapters.dynamo.projects import ProjectRepository

        return ProjectRepository(self.table)

    @cached_property
    def usage_store(self) -> UsageRepository:
        from tidegate.adapters.dynamo.usage import UsageRepository

        return UsageRepository(self.table)

    @cached_property
    def rate_limiter(self) -> RateLimiter:
        from tidegate.services.rate_limit import WINDOW_SECONDS, RateLimiter

        def register(project_id: str, window: int, name: str) -> int:
            return self.usage_store.register_server(project_id, window, name, (window + 60) * WINDOW_SECONDS)

        return RateLimiter(register)

    @cached_property
    def rate_quotas(self) -> RateQuotas:
        from tidegate.services.rate_quotas import RateQuotas

        return RateQuotas(self.project_store, self.clock)

    def due_handlers(self) -> dict[str, DueHandler]:
        """Who takes care of overdue work, by `due_kind`. A feature's mixin adds its own to what super() answers."""
        return {}
