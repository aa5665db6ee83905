"""Writes an SBOM (CycloneDX 1.6) of the third-party packages that run in Lambda."""

from __future__ import annotations

import hashlib
import json
import tomllib
import uuid
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from local.place import ROOT


def write_sbom(layer: Path, wheels: Path, out: Path, platform: str = "") -> None:
    """Writes the packages in `layer`, each with the digest of its wheel for `platform`."""
    out.write_text(
        json.dumps(document(list(distributions(path=[str(layer)])), digests(wheels, platform)), indent=2) + "\n"
    )


def digests(wheels: Path, platform: str) -> dict[str, str]:
    """Returns the SHA-256 of each package's wheel. If a package has several wheels, takes the one for `platform`."""
    by_name: dict[str, str] = {}
    for wheel in sorted(wheels.glob("*.whl")):
        name, _, _, tags = parse_wheel_filename(wheel.name)
        if any(tag.platform == "any" or tag.platform.endswith(platform) for tag in tags):
            by_name[canonicalize_name(name)] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return by_name


def document(installed: list[Distribution], digest_of: dict[str, str]) -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {canonicalize_name(distribution.name): distribution for distribution in installed}
    root = {"type": "application", "bom-ref": "tidegate", "name": "tidegate", "version": project["version"]}
    root |= {"licenses": [{"license": {"id": project["license"]}}]}
    components = [_component(name, known[name], digest_of.get(name)) for name in sorted(known)]
    depends = [{"ref": "tidegate", "dependsOn": _refs(project["dependencies"], known)}]
    depends += [
        {"ref": _purl(name, distribution), "dependsOn": _refs(distribution.requires or [], known)}
        for name, distribution in sorted(known.items())
    ]
    whole = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": root}}
    whole |= {"components": components, "dependencies": depends}
    # Deterministic: the same build has the same serial number.
    return whole | {"serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(whole, sort_keys=True))}"}


def _purl(name: str, distribution: Distribution) -> str:
    return f"pkg:pypi/{name}@{distribution.version}"


def _component(name: str, distribution: Distribution, digest: str | None) -> dict[str, Any]:
    component: dict[str, Any] = {"type": "library", "bom-ref": _purl(name, distribution), "name": name}
    component |= {"version": distribution.version, "purl": _purl(name, distribution)}
    # The package's SPDX expression if it has one, otherwise its own text.
    if expression := distribution.metadata["License-Expression"]:
        component["licenses"] = [{"expression": expression}]
    elif words := distribution.metadata["License"]:
        component["licenses"] = [{"license": {"name": words.splitlines()[0][:100]}}]
    if digest:
        component["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return component


def _refs(requirements: list[str], known: dict[Any, Distribution]) -> list[str]:
    wanted = [Requirement(line) for line in requirements]
    needed = {
        canonicalize_name(requirement.name)
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    return [_purl(name, known[name]) for name in sorted(needed) if name in known]
