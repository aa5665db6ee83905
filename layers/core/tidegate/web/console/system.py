"""The deployment as its operators see it: version, parameters, alarms, how long things are kept."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import Field

from tidegate.app import app
from tidegate.aws.alarms import alarms
from tidegate.settings import Settings
from tidegate.web.openapi import VERSION
from tidegate.web.routing import Router
from tidegate.web.schemas import Answer

router = Router()
# Addresses, secrets and names of resources are not parameters that an operator chose.
_HIDDEN = ("_url", "_arn", "_endpoint", "_sha256", "_name", "_prefix", "_bucket", "_credentials_id")


class AlarmAnswer(Answer):
    name: str
    state: Annotated[str, Field(description="ok, alarm or insufficient_data")]
    description: str
    reason: str
    since: str | None = None


class SystemAnswer(Answer):
    """`alarms_error` says why the alarms could not be read; they are empty then."""

    version: str
    stack_name: str
    parameters: dict[str, str | int]
    alarms: list[AlarmAnswer]
    alarms_error: str | None = None


@router.get("/v1/system", scope="admin", tags=["Operations"], summary="Version, parameters and alarms of the stack")
def show() -> SystemAnswer:
    settings = app().settings
    found, fault = _alarms(settings.stack_name)
    return SystemAnswer(
        version=VERSION,
        stack_name=settings.stack_name,
        parameters=parameters(settings),
        alarms=found,
        alarms_error=fault,
    )


def _alarms(stack_name: str) -> tuple[list[AlarmAnswer], str | None]:
    """The rest of the page is worth showing where CloudWatch does not answer."""
    if not stack_name:
        return [], "the stack's name is not known here"
    try:
        return [AlarmAnswer.model_validate(alarm) for alarm in alarms(app().cloudwatch, stack_name)], None
    except (BotoCoreError, ClientError) as error:
        return [], str(error)


def parameters(settings: Settings) -> dict[str, str | int]:
    """By the names that template.yaml gives them."""
    return {
        "".join(part.capitalize() for part in name.split("_")): value
        for name, value in asdict(settings).items()
        if not name.endswith(_HIDDEN)
    }
