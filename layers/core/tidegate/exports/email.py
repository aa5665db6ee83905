"""Mail that a file is there, by SES. Whoever runs this system names the sender and who may be written to."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.errors import Invalid
from tidegate.exports.objects import ExportBucket
from tidegate.queue.model import Request

logger = Logger(service="tidegate", child=True)

NOBODY = "-"
# The link of the mail itself; the page of the console leads to a fresh one for as long as the file is kept.
LINK_SECONDS = 3600


class LinkMail:
    def __init__(self, ses: Any, objects: ExportBucket, sender: str, recipients: str, api_url: str) -> None:
        self._ses = ses
        self._objects = objects
        self.sender = sender
        self.recipients = recipients
        self._api_url = api_url

    def check(self, addresses: Sequence[str]) -> None:
        for number, address in enumerate(addresses):
            allowed = NOBODY not in (self.sender, self.recipients)
            if not allowed or not fnmatchcase(address.lower(), self.recipients.lower()):
                said = (
                    f"mail may not go to {address}: whoever runs this system names the sender and the recipients "
                    "by the parameters EmailSender and EmailRecipients"
                )
                raise Invalid(said, errors=[{"loc": ["body", "email", number], "msg": said}])

    def send(self, addresses: Sequence[str], request: Request, result: dict[str, Any]) -> list[dict[str, Any]]:
        """Each with what became of it. The file is there in any case, so mail that fails does not fail the export.

        A publish that runs twice sends twice: SES has no way to tell that it is the same mail.
        """
        return [self._send(address, request, result) for address in addresses]

    def _send(self, address: str, request: Request, result: dict[str, Any]) -> dict[str, Any]:
        told = {"to": address}
        try:
            # Looked at again: the operator may have changed the recipients since.
            self.check([address])
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
        except Invalid as error:
            return told | {"state": "failed", "error": error.detail}
        except (ClientError, BotoCoreError) as error:
            logger.warning("mail about an export was not sent", request_id=request.request_id, why=str(error))
            return told | {"state": "failed", "error": str(error)[:300]}
        return told | {"state": "sent"}

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
