"""Tries the packages: installs, upgrades, removes and purges them in a Debian of their own, and in a root of rpm.

`make packages TRY=1`, as root, with debootstrap and rpm. The agent of the package delivers a file there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from local import packages
from local.place import ROOT
from tests.unit.client.fakes import AGENT, running_api, running_store

SUITE = "bookworm"
BASE = ROOT / ".local" / f"debian-{SUITE}.tar"
KEPT = ("etc/tidegate/agent.conf", "etc/tidegate/tidegate-agent.env", "var/lib/tidegate-agent/journal.sqlite")


def run(*words: str, root: Path | None = None, **more: str) -> str:
    command = ["chroot", str(root), *words] if root else list(words)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", **more}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(f"  ✗ {' '.join(words)}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def say(text: str) -> None:
    print(f"  ✓ {text}", flush=True)


def debian(home: Path) -> Path:
    """A Debian with Python, from a copy that is kept."""
    root = home / "debian"
    if not BASE.exists():
        BASE.parent.mkdir(exist_ok=True)
        words = ["debootstrap", "--variant=minbase", "--include=python3", SUITE, str(home / "base")]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        run("tar", "-C", str(home / "base"), "-cf", str(BASE), "--exclude=./dev/*", ".")
        shutil.rmtree(home / "base")
    root.mkdir()
    run("tar", "-C", str(root), "-xf", str(BASE))
    return root


def deliver(root: Path) -> None:
    """The agent of the package fetches a file, verifies it and puts it in place."""
    with running_store() as store, running_api(store) as api:
        content = os.urandom(3 << 20)
        transfer = api.add("moon.bin", content, directory="/srv/data", user="root")
        environment = f'TIDEGATE_API_URL="{api.url}"\nTIDEGATE_KEY="tg_x"\nTIDEGATE_AGENT_ID="{AGENT}"\n'
        file = root / "etc/tidegate/tidegate-agent.env"
        file.write_text(environment)
        file.chmod(0o600)
        start = "set -a; . /etc/tidegate/agent.conf; . /etc/tidegate/tidegate-agent.env; "
        start += "exec /usr/bin/tidegate agent --state-dir /var/lib/tidegate-agent --no-push $TIDEGATE_AGENT_OPTIONS"
        with (root / "tmp/agent.log").open("w") as log:
            agent = subprocess.Popen(["chroot", str(root), "sh", "-c", start], stdout=log, stderr=log)
        try:
            result = api.wait_for(transfer)
        finally:
            agent.terminate()
            agent.wait(60)
        if result["error_code"] or (root / "srv/data/moon.bin").read_bytes() != content:
            raise SystemExit(f"  ✗ {result}\n{(root / 'tmp/agent.log').read_text()}")


def state(root: Path) -> list[str]:
    return [name for name in KEPT if (root / name).exists()]


def try_deb(home: Path, older: Path, newer: Path) -> None:
    root = debian(home)
    for file in (older, newer):
        shutil.copy(file, root / "tmp" / file.name)
    run("dpkg", "-i", f"/tmp/{older.name}", root=root)
    say(f"installed {older.name}; {run('tidegate', '--version', root=root).strip()}")
    deliver(root)
    say("its agent delivered a file")
    (root / "etc/tidegate/agent.conf").write_text('TIDEGATE_AGENT_OPTIONS="--root / --allow-dir /srv --parallel 2"\n')
    run("dpkg", "-i", f"/tmp/{newer.name}", root=root)
    assert "--parallel 2" in (root / "etc/tidegate/agent.conf").read_text(), "the upgrade replaced changed options"
    deliver(root)
    say(f"upgraded to {newer.name}: changed options, key and journal were kept, and it delivers")
    run("dpkg", "--remove", packages.NAME, root=root)
    assert state(root) == list(KEPT), state(root)
    assert not (root / "usr/lib/tidegate-agent").exists(), "the removal left files of the program"
    say("removed: options, key and journal are kept, nothing of the program")
    run("dpkg", "-i", f"/tmp/{newer.name}", root=root)
    run("dpkg", "--purge", packages.NAME, root=root)
    left = [str(path) for path in root.rglob("*tidegate*") if "/tmp/" not in str(path) and "/proc/" not in str(path)]
    assert left == [], left
    say("purged: nothing is left")


def try_rpm(home: Path, file: Path) -> None:
    root = home / "rpm"
    root.mkdir()
    run("rpm", "--root", str(root), "--initdb")
    run("rpm", "--root", str(root), "-i", "--nodeps", "--noscripts", str(file))
    said = run(sys.executable, "-s", str(root / packages.HOME[1:]), "--version", PYTHONDONTWRITEBYTECODE="1").strip()
    assert run("rpm", "-qp", "--configfiles", str(file)).strip() == f"{packages.ETC}/agent.conf"
    say(f"installed {file.name} into a root of rpm; {said}")
    run("rpm", "--root", str(root), "-e", "--noscripts", packages.NAME)
    left = [str(path) for path in (root / "usr").rglob("*tidegate*")]
    assert left == [], left
    say("erased: nothing of the program is left")


def main() -> None:
    missing = [tool for tool in ("debootstrap", "dpkg-deb", "rpmbuild", "chroot") if not shutil.which(tool)]
    if missing or os.geteuid():
        raise SystemExit(f"  this needs root and {', '.join(missing) or 'nothing else'} (apt install debootstrap rpm)")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        _, older, _ = packages.build(home / "older", "1.0.9")
        _, newer, rpm = packages.build(home / "newer")
        try_deb(home, older, newer)
        try_rpm(home, rpm)
    say(f"in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
