"""What the Makefile's commands are run with."""

from __future__ import annotations

import os
import subprocess

from tests.support.template import ROOT


def test_commands_keep_compiled_modules_although_the_container_says_not_to() -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["make", "--no-print-directory", "--eval", "show-environment: ; @env", "show-environment"]

    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert "UV_SYSTEM_CERTS=1" in shown
    assert "PYTHONDONTWRITEBYTECODE" not in shown
