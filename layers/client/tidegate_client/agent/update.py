"""A transfer that delivers a new version of the agent. Its result is reported by the version that runs afterwards."""

from __future__ import annotations

import os
import pwd
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

from tidegate_client.agent.disk.path_order import superseded
from tidegate_client.agent.journal import Applied, Journal
from tidegate_client.agent.refusals import RefusedPath, UpdateFailed
from tidegate_client.agent.releases import UPDATE_DIR, NotARelease, Releases, running_release
from tidegate_client.models import Transfer


def is_update(transfer: Transfer) -> bool:
    return transfer["target_file_dir"].rstrip("/") == UPDATE_DIR


@dataclass(frozen=True, slots=True)
class SelfUpdate:
    """`restart` stops the agent so that it starts again as the new version."""

    releases: Releases
    journal: Journal
    restart: Callable[[], None]

    def local_transfer(self, transfer: Transfer) -> Transfer | None:
        """The transfer, changed to put the release into its own directory; None if this process runs that release."""
        if transfer.get("container_id"):
            raise RefusedPath("a new version of the agent can be sent to a host only, not to a container")
        signature, sequence = transfer["signature"].lower(), transfer.get("sequence")
        if signature == running_release():
            return None
        if reason := self.releases.why_refused(signature):
            raise UpdateFailed(reason)
        applied = self.journal.applied(self.releases.directory)
        if applied and sequence is not None and applied.sequence > sequence:
            raise superseded(applied)
        self.releases.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        release = {"target_file_dir": "/releases", "file_name": f"{signature}.whl", "mode": "0600", "sequence": None}
        own_user = pwd.getpwuid(os.geteuid()).pw_name
        return transfer | release | {"target_user": own_user, "swarm": None}  # type: ignore[return-value]

    def switch(self, transfer: Transfer) -> None:
        """Switches to the release, whose file is in place, and restarts."""
        signature, sequence = transfer["signature"].lower(), transfer.get("sequence")
        try:
            self.releases.switch(signature)
        except (NotARelease, zipfile.BadZipFile) as error:
            self.releases.file(signature).unlink(missing_ok=True)
            raise UpdateFailed(f"the file is not a release of the agent: {error}") from error
        if sequence is not None:
            self.journal.apply(self.releases.directory, Applied(sequence, signature))
        self.restart()
