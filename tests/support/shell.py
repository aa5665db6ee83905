"""A user's shell in which the `tidegate` command runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Shell:
    """Runs commands with a separate home directory. With `key`, the environment has the API's URL and that key."""

    home: Path
    api_url: str

    def start(self, *words: str, key: str | None = None) -> subprocess.Popen[str]:
        environment = os.environ | {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_STATE_HOME": str(self.home / "state"),
        }
        if key:
            environment |= {"TIDEGATE_API_URL": self.api_url, "TIDEGATE_KEY": key}
        command = [sys.executable, "-m", "tidegate_client", *words]
        return subprocess.Popen(
            command, cwd=self.home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *words: str, expect: int = 0, key: str | None = None) -> str:
        return self.both(*words, expect=expect, key=key)[0]

    def both(self, *words: str, expect: int = 0, key: str | None = None) -> tuple[str, str]:
        process = self.start(*words, key=key)
        out, err = process.communicate(timeout=120)
        assert process.returncode == expect, f"{words}: {process.returncode}\n{out}\n{err}"
        return out, err

    def json(self, *words: str, key: str | None = None) -> Any:
        return json.loads(self.run(*words, "--json", key=key))
