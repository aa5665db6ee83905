"""The agent as a systemd service, with the permissions that it needs and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

UNIT_DIR = Path("/etc/systemd/system")
ENVIRONMENT_DIR = Path("/etc/tidegate")
STATE_BASE = Path("/var/lib")
# Needed to write into directories of any user and to give files to their owners.
CAPABILITIES = "CAP_CHOWN CAP_FOWNER CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH"

UNIT = """\
[Unit]
Description=Tidegate agent {agent_id}
Wants=network-online.target
After=network-online.target
# No limit of restarts: the cause of a failed start (a full disk, an API that refuses every key) may be temporary.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
EnvironmentFile={environment}
ExecStart={command}
Restart=always
RestartSec=5
# The agent notifies systemd while it is healthy; after this long without a notification it is restarted.
WatchdogSec=180
KillSignal=SIGTERM
TimeoutStopSec={stop_seconds}
StateDirectory={state}
StateDirectoryMode=0700
UMask=0022
LimitNOFILE=65536
MemoryMax={memory}
Nice=5

CapabilityBoundingSet={capabilities}
AmbientCapabilities=
NoNewPrivileges=yes
{file_system}
PrivateDevices=yes
PrivateIPC=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallFilter=@chown
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A service and its unit file. `writable`: directories that it may write to; none: the whole file system."""

    name: str
    agent_id: str
    command: Sequence[str]
    environment: Sequence[tuple[str, str]]
    writable: Sequence[Path]
    drain_seconds: float = 30.0
    memory: str = "512M"

    @property
    def unit_path(self) -> Path:
        return UNIT_DIR / f"{self.name}.service"

    @property
    def environment_path(self) -> Path:
        return ENVIRONMENT_DIR / f"{self.name}.env"

    @property
    def state_dir(self) -> Path:
        return STATE_BASE / self.name

    def unit(self) -> str:
        return UNIT.format(
            agent_id=self.agent_id.replace("%", "%%"),
            environment=self.environment_path,
            command=" ".join(_quoted(word) for word in self.command),
            stop_seconds=int(self.drain_seconds) + 20,
            state=self.name,
            memory=self.memory,
            capabilities=CAPABILITIES,
            file_system=self._file_system(),
        )

    def _file_system(self) -> str:
        if not self.writable:
            return "ProtectSystem=no"
        paths = " ".join(_quoted(str(path)) for path in self.writable)
        return f"ProtectSystem=strict\nReadWritePaths={paths}"

    def environment_text(self) -> str:
        return "".join(f'{name}="{_escaped(value)}"\n' for name, value in self.environment)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(word: str) -> str:
    """Quotes a word of a command for systemd, with doubled percent and dollar signs."""
    if "\n" in word or "\0" in word:
        raise ValueError(f"{word!r} has a line break or a NUL, which a systemd unit cannot have")
    safe = _escaped(word).replace("%", "%%").replace("$", "$$")
    return f'"{safe}"' if any(char in safe for char in " \t\"'\\;") or not safe else safe
