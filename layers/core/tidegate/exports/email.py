"""Mails with a link to a finished file, sent by SES. The operator sets the sender and the allowed recipients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, EndpointConnectionError

from tidegate.common.ids import Clock
from tidegate.errors import Invalid
from tidegate.exports.objects import ExportBucket
from tidegate.exports.store import ExportStore
from tidegate.queue.model import Request

logger = Logger(service="tidegate", child=True)

NOBODY = "-"
# For the link in the mail; the console has a fresh one as long as the file is kept.
LINK_SECONDS = 3600
_TRIES = 3
_THROTTLED = frozenset({"Throttling", "ThrottlingException", "TooManyRequestsException"})
_UNREACHED = (EndpointConnectionError, ConnectTimeoutError)


class LinkMail:
    def __init__(
        self,
        ses: Any,
        objects: ExportBucket,
        store: ExportStore,
        clock: Clock,
        sender: str,
        recipients: str,
        api_url: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ses = ses
        self._objects = objects
        self._store = store
        self._clock = clock
        self.sender = sender
        self.recipients = recipients
        self._api_url = api_url
        self._sleep = sleep

    def check(self, addresses: Sequence[str]) -> None:
        for number, address in enumerate(addresses):
            allowed = NOBODY not in (self.sender, self.recipients)
            if not allowed or not fnmatchcase(address.lower(), self.recipients.lower()):
                detail = (
                    f"mail to {address} is not allowed: an operator can allow it with the "
                    "parameters EmailSender and EmailRecipients"
                )
                raise Invalid(detail, errors=[{"loc": ["body", "email", number], "msg": detail}])

    def send(self, addresses: Sequence[str], request: Request, result: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends the mails and returns the state of each. A mail that fails does not fail the export.

        At most one mail is sent per address and export, however often the publish step is repeated: a mail is recorded
        as begun before it is sent. If the function dies in between, its state is `unknown`.
        """
        return [{"to": address} | self._send(address, request, result) for address in addresses]

    def _send(self, address: str, request: Request, result: dict[str, Any]) -> dict[str, Any]:
        try:
            # Check again: the operator may have changed the recipients since the order.
            self.check([address])
        except Invalid as error:
            return {"state": "failed", "error": error.detail}
        earlier = self._store.begin_mail(request, address, self._clock())
        if earlier is not None:
            return earlier
        outcome = self._outcome(address, request, result)
        self._store.end_mail(request, address, outcome)
        return outcome

    def _outcome(self, address: str, request: Request, result: dict[str, Any]) -> dict[str, Any]:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._ses.send_email(
                    FromEmailAddress=self.sender,
                    Destination={"ToAddresses": [address]},
                    Content={
                        "Simple": {
                            "Subject": {"Data": f"{result['file_name']} is ready", "Charset": "UTF-8"},
                            "Body": {"Text": {"Data": self._text(request, result), "Charset": "UTF-8"}},
                        }
                    },
                )
            except (ClientError, BotoCoreError) as error:
                if tries_left and _is_refused(error):
                    self._sleep(2.0 ** (_TRIES - tries_left))
                    continue
                return _not_sent(request, error)
            break
        return {"state": "sent"}

    def _text(self, request: Request, result: dict[str, Any]) -> str:
        link = self._objects.link(str(result["key"]), LINK_SECONDS, str(result["file_name"]))
        warnings = "".join(f"\nNote: {warning}" for warning in result.get("warnings") or ())
        return (
            f'The export "{request.payload.get("name")}" is ready: {result["file_name"]}, '
            f"{result['rows']:,} rows, {result['size']:,} bytes.{warnings}\n\n"
            f"Download it within an hour:\n{link}\n\n"
            f"Later, with a key of the project, for as long as the file is kept (7 days):\n"
            f"{self._api_url}/#/exports/{request.request_id}\n"
        )


def _not_sent(request: Request, error: ClientError | BotoCoreError) -> dict[str, Any]:
    logger.warning("mail about an export was not sent", request_id=request.request_id, why=str(error))
    lost = _status(error) >= 500 if isinstance(error, ClientError) else not isinstance(error, _UNREACHED)
    return {"state": "unknown" if lost and not _is_refused(error) else "failed", "error": str(error)[:300]}


def _is_refused(error: ClientError | BotoCoreError) -> bool:
    """Whether SES certainly did not accept the mail and a retry may succeed."""
    return isinstance(error, _UNREACHED) or (
        isinstance(error, ClientError) and error.response["Error"]["Code"] in _THROTTLED
    )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
