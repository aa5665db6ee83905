"""The route for the state of the deployment: version, parameters and alarms."""

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
# Settings that no operator chooses: addresses, hashes and names of resources.
_HIDDEN = ("_url", "_arn", "_endpoint", "_sha256", "_name", "_prefix", "_bucket", "_credentials_id")


class AlarmAnswer(Answer):
    name: str
    state: Annotated[str, Field(description="`ok`, `alarm` or `insufficient_data`")]
    description: str
    reason: str
    since: str | None = None


class SystemAnswer(Answer):
    """The deployment. If its alarms cannot be read, `alarms` is empty and `alarms_error` says why."""

    version: str
    stack_name: str
    parameters: dict[str, str | int]
    alarms: list[AlarmAnswer]
    alarms_error: str | None = None


@router.get("/v1/system", scope="admin", tags=["Operations"], summary="Get version, parameters and alarms of the stack")
def show() -> SystemAnswer:
    settings = app().settings
    found, error = _alarms(settings.stack_name)
    return SystemAnswer(
        version=VERSION,
        stack_name=settings.stack_name,
        parameters=parameters(settings),
        alarms=found,
        alarms_error=error,
    )


def _alarms(stack_name: str) -> tuple[list[AlarmAnswer], str | None]:
    """(alarms, error). An error does not fail the request, because the rest of the answer is useful without alarms."""
    if not stack_name:
        return [], "the function does not know the name of its stack: set STACK_NAME"
    try:
        return [AlarmAnswer.model_validate(alarm) for alarm in alarms(app().cloudwatch, stack_name)], None
    except (BotoCoreError, ClientError) as error:
        return [], str(error)


def parameters(settings: Settings) -> dict[str, str | int]:
    """Parameters by their names in template.yaml."""
    return {
        "".join(part.capitalize() for part in name.split("_")): value
        for name, value in asdict(settings).items()
        if not name.endswith(_HIDDEN)
    }
