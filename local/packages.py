"""Builds the packages that hosts install: `python -m local.packages [DIRECTORY]`, by default into dist/.

| file | for |
| --- | --- |
| `tidegate-VERSION.pyz` | any host with Python 3.9 or later: a single file that contains all it needs |
| `tidegate-agent_VERSION_all.deb` | Debian 11, Ubuntu 22.04 and later |
| `tidegate-agent-VERSION-1.noarch.rpm` | RHEL 9, Amazon Linux 2023 and later; built where `rpmbuild` is installed |

The packages install the content of the single file as the directory `/usr/lib/tidegate-agent`, which Python can run.
Of the host's Python packages, only `cryptography` is used, if it is there. The same sources and SOURCE_DATE_EPOCH
give the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

from local import client_wheel
from local.place import ROOT
from tidegate_client.agent.service import CAPABILITIES, UNIT

NAME = "tidegate-agent"
HOME, ETC, STATE = f"/usr/lib/{NAME}", "/etc/tidegate", f"/var/lib/{NAME}"
PACKAGING = ROOT / "local" / "packaging"
LOCK = ROOT / ".lock" / "agent.txt"
SUMMARY = "Receives files and releases on this host from Tidegate"
_MAIN = """import sys

if sys.version_info < (3, 9):
    sys.exit("tidegate needs Python 3.9 or later; this is %d.%d" % sys.version_info[:2])

from tidegate_client.cli import main

sys.exit(main())
"""
# Files that an installer creates and that differ between machines.
_TRACES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


def version() -> str:
    return str(tomllib.loads((ROOT / "layers/client/pyproject.toml").read_text())["project"]["version"])


def epoch() -> int:
    """Returns SOURCE_DATE_EPOCH, else the time of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    said = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(said.stdout.strip() or 1_700_000_000)


# --- the program


def make_home(home: Path) -> None:
    """Installs the client and its dependencies into one directory, which Python can run."""
    uv = str(Path(sys.executable).parent / "uv")
    install = [uv, "pip", "install", "-q", "--target", str(home), "--python-version", "3.9", "--no-compile-bytecode"]
    subprocess.run([*install, "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK)], check=True)
    with tempfile.TemporaryDirectory() as out, zipfile.ZipFile(client_wheel.build(Path(out))) as wheel:
        wheel.extractall(home)
    (home / "__main__.py").write_text(_MAIN)
    for path in sorted(home.rglob("*"), reverse=True):
        if path.name in _TRACES or path.name == ".lock":
            path.unlink()
    shutil.rmtree(home / "bin", ignore_errors=True)


def make_zipapp(home: Path, out: Path) -> Path:
    file = out / f"tidegate-{version()}.pyz"
    moment = time.gmtime(max(epoch(), 315_532_800))[:6]
    with file.open("wb") as raw:
        raw.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in home.rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(str(path.relative_to(home)), moment)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, path.read_bytes())
    file.chmod(0o755)
    return file


# --- the packages


def unit() -> str:
    """Returns the unit of `tidegate agent install`, changed to read its options from a file."""
    text = UNIT.format(
        agent_id="%H",
        environment=f"{ETC}/{NAME}.env",
        command=f"/usr/bin/tidegate agent --state-dir {STATE} $TIDEGATE_AGENT_OPTIONS",
        stop_seconds=50,
        state=NAME,
        memory="512M",
        # Other directories, and hooks of other users: systemctl edit tidegate-agent.
        capabilities=CAPABILITIES,
        calls="",
        file_system="ProtectSystem=strict\nReadWritePaths=-/srv",
    )
    # Until the host is enrolled there is nothing to start with.
    text = text.replace("[Service]\n", f"ConditionPathExists={ETC}/{NAME}.env\n\n[Service]\n", 1)
    return text.replace("EnvironmentFile=", f"EnvironmentFile={ETC}/agent.conf\nEnvironmentFile=", 1)


def make_tree(home: Path, root: Path) -> None:
    """Creates the files of both packages with their paths on the host."""
    shutil.copytree(home, root / HOME[1:])
    files = {
        "usr/bin/tidegate": ((PACKAGING / "tidegate").read_text(), 0o755),
        f"usr/lib/systemd/system/{NAME}.service": (unit(), 0o644),
        f"{ETC[1:]}/agent.conf": ((PACKAGING / "agent.conf").read_text(), 0o644),
        f"usr/share/doc/{NAME}/copyright": ((ROOT / "LICENSE").read_text(), 0o644),
    }
    for name, (text, mode) in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)


def make_deb(tree: Path, out: Path, number: str) -> Path:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made) / "root"
        shutil.copytree(tree, root)
        control = root / "DEBIAN"
        control.mkdir()
        files = sorted(path for path in root.rglob("*") if path.is_file())
        size = sum(path.stat().st_size for path in files) // 1024
        (control / "control").write_text(
            f"Package: {NAME}\nVersion: {number}\nArchitecture: all\nMaintainer: Tidegate <tidegate@localhost>\n"
            f"Installed-Size: {size}\nDepends: python3 (>= 3.9)\nRecommends: python3-cryptography\nSection: net\n"
            f"Priority: optional\nDescription: {SUMMARY}\n"
            " The agent that fetches, verifies and puts in place what a Tidegate installation\n"
            " sends to this host, and the tidegate command.\n"
        )
        (control / "conffiles").write_text(f"{ETC}/agent.conf\n")
        sums = "".join(f"{hashlib.md5(p.read_bytes()).hexdigest()}  {p.relative_to(root)}\n" for p in files)  # noqa: S324
        (control / "md5sums").write_text(sums)
        for name in ("postinst", "prerm", "postrm"):
            shutil.copy(PACKAGING / name, control / name)
            (control / name).chmod(0o755)
        _same_times_and_modes(root)
        file = out / f"{NAME}_{number}_all.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(file)]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch())}
        )
    return file


def _same_times_and_modes(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        mode = 0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644
        path.chmod(mode)
        os.utime(path, (epoch(), epoch()))


_SPEC = """
%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none
Name: {name}
Version: {number}
Release: 1
Summary: {summary}
License: MIT
BuildArch: noarch
AutoReqProv: no
Requires: python3 >= 3.9
Recommends: python3-cryptography

%description
The agent that fetches, verifies and puts in place what a Tidegate installation
sends to this host, and the tidegate command.

%install
cp -a {tree}/. %{{buildroot}}/

%files
{home}
/usr/bin/tidegate
/usr/lib/systemd/system/{name}.service
%doc /usr/share/doc/{name}
%dir {etc}
%config(noreplace) {etc}/agent.conf

# The scripts get how many versions there will be afterwards; they are those of the Debian package.
%post
[ "$1" = 1 ] || set -- configure former
[ "$1" = configure ] || set -- configure
{postinst}
%preun
if [ "$1" = 0 ]; then set -- remove; else set -- upgrade; fi
{prerm}
"""


def make_rpm(tree: Path, out: Path, number: str) -> Path:
    with tempfile.TemporaryDirectory() as made:
        top, copy = Path(made), Path(made) / "tree"
        shutil.copytree(tree, copy)
        _same_times_and_modes(copy)
        scripts = {name: (PACKAGING / name).read_text().partition("\n")[2] for name in ("postinst", "prerm")}
        spec = top / f"{NAME}.spec"
        spec.write_text(
            _SPEC.format(name=NAME, number=number, summary=SUMMARY, tree=copy, home=HOME, etc=ETC, **scripts)
        )
        defines = {
            "_topdir": str(top),
            "_buildhost": "tidegate",
            "use_source_date_epoch_as_buildtime": "1",
            "clamp_mtime_to_source_date_epoch": "1",
        }
        words = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch())}
        done = subprocess.run(
            ["rpmbuild", "-bb", "--quiet", "--target", "noarch", *words, str(spec)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"rpmbuild failed: {done.stderr[-2000:]}")
        (built,) = (top / "RPMS").rglob("*.rpm")
        return Path(shutil.move(built, out / built.name))


def build(out: Path, number: str | None = None) -> list[Path]:
    """Builds the files and returns their paths. A package is left out if the tool of its format is not installed."""
    out.mkdir(parents=True, exist_ok=True)
    number = number or version()
    with tempfile.TemporaryDirectory() as made:
        home, tree = Path(made) / "home", Path(made) / "tree"
        make_home(home)
        files = [make_zipapp(home, out)]
        make_tree(home, tree)
        for tool, make in (("dpkg-deb", make_deb), ("rpmbuild", make_rpm)):
            if shutil.which(tool):
                files.append(make(tree, out, number))
            else:
                print(f"  {tool} is not installed: its package is not built (Debian: apt install dpkg rpm)")
    return files


if __name__ == "__main__":
    for made in build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"):
        print(f"  ✓ {made.name}  {made.stat().st_size // 1024} KiB  {hashlib.sha256(made.read_bytes()).hexdigest()}")
