"""Zip files of functions and layers, named by a hash of their content. Unchanged files are not uploaded again."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.place import ROOT

BUCKET = "tidegate-artifacts"
# A fixed time stamp, so that the same content gives the same zip.
EPOCH = (1980, 1, 1, 0, 0, 0)
CODE_PROPERTY = {
    "AWS::Serverless::Function": "CodeUri",
    "AWS::Serverless::LayerVersion": "ContentUri",
    "AWS::Serverless::StateMachine": "DefinitionUri",
}


@dataclass(frozen=True)
class Artifact:
    key: str
    body: bytes


def folder_zip(folder: Path, inside: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = zipfile.ZipInfo(inside + path.relative_to(folder).as_posix(), EPOCH)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


def artifact_of(kind: str, path: Path) -> Artifact:
    if kind == "AWS::Serverless::StateMachine":
        body, suffix = path.read_bytes(), ".asl.json"
    else:
        body, suffix = folder_zip(path, "python/" if kind.endswith("LayerVersion") else ""), ".zip"
    name = path.name.partition(".")[0]
    return Artifact(f"{name}/{hashlib.sha256(body).hexdigest()[:32]}{suffix}", body)


def package(template: dict[str, Any]) -> list[Artifact]:
    """Replaces every local path in the template by an S3 object. Returns the objects to upload."""
    packaged: dict[Path, Artifact] = {}
    for resource in template["Resources"].values():
        kind = resource["Type"]
        if (name := CODE_PROPERTY.get(kind)) and isinstance(resource["Properties"].get(name), str):
            path = ROOT / resource["Properties"][name]
            if path not in packaged:
                packaged[path] = artifact_of(kind, path)
            resource["Properties"][name] = {"Bucket": BUCKET, "Key": packaged[path].key}
    return list(packaged.values())
