"""Runs `sam build` and `sam deploy` with what they need: `python -m local.sam build | build-here | deploy`."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import boto3

from local import deployed, preflight, template
from local.place import AWS_KEY, ROOT, kept_key, sha256_hex
from local.progress import Failure, fail, say, step
from local.sbom import write_sbom
from local.wheels import lambda_wheels, wheels_for
from tidegate.web import openapi
from tidegate.web.api import build_api

RUNTIME = f"python{deployed.version()}"
ARCHITECTURE = "arm64"
SAM = ROOT / ".local" / "sam" / "bin" / "sam"
CONFIG = ROOT / ".samconfig.toml"
BUILT = ROOT / ".aws-sam" / "build" / "template.yaml"
HERE = ROOT / ".local" / "build"
LAYER_NAME = "DepsLayer"
SBOM = ROOT / ".aws-sam" / "sbom.cdx.json"
# The placeholder in template.yaml that each deployment replaces by its release.
UNRELEASED = "not-released"


def machine_architecture() -> str:
    return "arm64" if platform.machine() in {"arm64", "aarch64"} else "x86_64"


def build() -> int:
    """Builds for Lambda. This machine does not need Lambda's Python version, because uv gets the packages for it."""
    version = deployed.version()
    out = BUILT.parent
    with step(f"sam build for {RUNTIME} on {ARCHITECTURE}"):
        wheels = lambda_wheels(version, "aarch64")
        target = f"--python-version {version} --python-platform aarch64-manylinux_2_34"
        sam_build(ROOT / "template.yaml", out, target, wheels)
    write_sbom(out / LAYER_NAME / "python", wheels, SBOM, "aarch64")
    say(f"  ✓ what is in the layer: {SBOM.relative_to(ROOT)}")
    return 0


def build_here() -> int:
    """Builds for this machine, so that its Python can import the handlers.

    Uses Lambda's Python version if it is installed."""
    found = deployed.interpreter(deployed.version())
    python, name = Path(found or sys.executable), RUNTIME if found else f"python3.{sys.version_info.minor}"
    HERE.mkdir(parents=True, exist_ok=True)
    copy = HERE / "template.yaml"
    copy.write_text((ROOT / "template.yaml").read_text().replace(ARCHITECTURE, machine_architecture()))
    with step(f"sam build for {name} on {machine_architecture()}"):
        wheels = wheels_for(python)
        sam_build(copy, HERE / "out", f"--python {python}", wheels)
    write_sbom(HERE / "out" / LAYER_NAME / "python", wheels, HERE / SBOM.name, platform.machine())
    (HERE / "python").write_text(str(python))
    return 0


def sam_build(template: Path, out: Path, target: str, wheels: Path) -> None:
    """Builds into `out`.

    `target`: the options with which uv chooses the Python version and platform for the layer of dependencies."""
    # SAM's cache knows the layer's sources only, not for which Python it was built.
    cache = out.parent / f"cache-{sha256_hex(target)[:8]}"
    command: list[str | Path] = [SAM, "build", "--template", template, "--base-dir", ROOT, "--build-dir", out]
    command += ["--cached", "--cache-dir", cache, "--config-file", CONFIG]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": "us-east-1"}
    environment |= {"DEPS_TARGET": target, "DEPS_WHEELS": f"--no-index --find-links {wheels}"}
    # SAM starts a make of its own, which must not count as part of the make that started this.
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        environment.pop(name, None)
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Failure(
            f"sam build failed:\n{(result.stdout + result.stderr)[-3000:]}", "fix what it names, then make build"
        )
    built = out / "CoreLayer" / "python" / "tidegate" / "web" / openapi.BUILT.name
    built.write_text(openapi.document(build_api()), "utf-8")


def dry_run() -> int:
    """Builds and validates the template; with AWS credentials, also checks the account. Changes nothing there."""
    wanted = preflight.parameters(CONFIG, os.environ.get("PARAMS", ""), template.load()["Parameters"])
    build()
    with step("sam validate --lint"):
        environment = {"AWS_DEFAULT_REGION": "us-east-1", **os.environ, "SAM_CLI_TELEMETRY": "0"}
        command: list[str | Path] = [SAM, "validate", "--lint", "--template-file", BUILT]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Failure(f"the template is not valid:\n{(result.stdout + result.stderr)[-3000:]}", "fix what it names")
    session = boto3.Session()
    if session.get_credentials() is None:
        say("  … no AWS credentials here: the account is not checked")
    else:
        preflight.check(session.client, session.region_name, _stack_name(), wanted, say)
    say("A dry run: nothing was deployed.")
    return 0


def deploy() -> int:
    """Checks the parameters and the account, builds, and deploys the stack."""
    if os.environ.get("DRY_RUN"):
        return dry_run()
    wanted = preflight.parameters(CONFIG, os.environ.get("PARAMS", ""), template.load()["Parameters"])
    session = boto3.Session()
    checked = preflight.check(session.client, session.region_name, _stack_name(), wanted, say)
    wanted |= checked.reservations
    # Named in each deployment, because sam keeps the value of a parameter that is not.
    wanted["BreakGlass"] = "yes" if os.environ.get("BREAK_GLASS") == "yes" else "no"
    build()
    if _sets_admin_key(wanted, checked.exists):
        wanted["AdminKeySha256"] = sha256_hex(kept_key(AWS_KEY))
        say(f"  the admin key of this deployment is in {AWS_KEY.relative_to(ROOT)}")
    stamp(BUILT, wanted, moment())
    if not checked.exists:
        # The table is protected only after the creation: a protected one could not be rolled back if it failed.
        if code := _sam_deploy({**wanted, "TableDeletionProtection": "no"}):
            return code
        return _sam_deploy({"TableDeletionProtection": "yes", **wanted}, confirmed=True)
    return _sam_deploy(wanted)


def _sets_admin_key(wanted: Mapping[str, str], exists: bool) -> bool:
    """Returns whether this deployment sets the admin key.

    It does not with ADMIN_KEY=keep, or if the hash of a key is given as a parameter. A build server that does not have
    the key keeps the key of an existing stack."""
    if "AdminKeySha256" in wanted or os.environ.get("ADMIN_KEY") == "keep":
        return False
    return not (exists and unattended() and not AWS_KEY.exists())


def unattended() -> bool:
    """Returns whether nobody can answer a question: on a build server, or without a terminal."""
    return bool(os.environ.get("CI")) or not sys.stdin.isatty()


def moment() -> str:
    """Returns a unique name for this deployment."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def stamp(built: Path, wanted: Mapping[str, str], deployment: str) -> None:
    """Writes the release into the built template: a hash of template, parameters and code, and the deployment's name.

    The name of the deployment makes every release differ. Without it, the stack would fail in two cases ("A version
    for this Lambda function exists"). Lambda publishes a version only if the code or the configuration differs from
    the version published last. But SAM wants a new version for any changed property, even one that Lambda does not
    count (a tag, a reservation). And after a rollback, the version published last is that of the deployment that is
    tried again."""
    text = built.read_text()
    if UNRELEASED not in text:
        raise Failure(f"the built template does not name the release {UNRELEASED}", "fix Globals in template.yaml")
    content = sha256_hex(json.dumps([text, dict(wanted), _code_hash(built.parent)], sort_keys=True))[:12]
    release = f"{content}-{deployment}"
    built.write_text(text.replace(UNRELEASED, release))
    say(f"  release {release}")


def _code_hash(built: Path) -> str:
    """Returns a hash of the names and contents of all files of the built functions and layers."""
    found = hashlib.sha256()
    for path in sorted(path for path in built.rglob("*") if path.is_file() and path.name != "template.yaml"):
        found.update(f"{path.relative_to(built)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _sam_deploy(wanted: Mapping[str, str], *, confirmed: bool = False) -> int:
    command: list[str | Path] = [SAM, "deploy", "--config-file", CONFIG, *sys.argv[2:]]
    if confirmed or unattended():
        command.append("--no-confirm-changeset")
    if wanted:
        command += ["--parameter-overrides", *(preflight.override(*pair) for pair in wanted.items())]
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _stack_name() -> str:
    settings = tomllib.loads(CONFIG.read_text())["default"]["deploy"]["parameters"]
    return str(settings["stack_name"])


def main() -> int:
    commands = {"build": build, "build-here": build_here, "deploy": deploy}
    try:
        return commands[sys.argv[1]]()
    except Failure as failure:
        return fail(failure)


if __name__ == "__main__":
    sys.exit(main())
