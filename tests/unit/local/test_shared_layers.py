"""Functions share the unpacked content of their layers."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

from local.shared_layers import LAYER_FOLDERS, SharedLayers


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"python/{name}.py", text)
    return buffer.getvalue()


def folders(config: dict[str, Any]) -> list[Path]:
    return [Path(folder) for folder in config["Environment"]["Variables"][LAYER_FOLDERS].split(os.pathsep)]


def test_two_functions_share_one_folder_for_each_layer(tmp_path: Path) -> None:
    contents = {"core": zipped(core="x = 1"), "deps": zipped(deps="y = 1")}
    layers = SharedLayers(tmp_path, lambda layer: contents[layer["Arn"]])
    attached = [{"Arn": "core"}, {"Arn": "deps"}]
    first = {"FunctionName": "a", "Layers": attached, "Environment": {"Variables": {"TABLE": "t"}}}

    mounted = layers.mounted(first)
    core, deps = folders(mounted)

    assert (core / "python" / "core.py").read_text() == "x = 1"
    assert (deps / "python" / "deps.py").read_text() == "y = 1"
    assert mounted["Layers"] == []
    assert mounted["Environment"]["Variables"]["TABLE"] == "t"
    assert first["Layers"] == attached
    assert folders(layers.mounted({"FunctionName": "b", "Layers": attached})) == [core, deps]


def test_changed_layer_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    contents = [zipped(core="x = 1"), zipped(core="x = 2")]
    layers = SharedLayers(tmp_path, lambda layer: contents[layer])

    (before,), (after,) = (folders(layers.mounted({"Layers": [version]})) for version in (0, 1))

    assert (before / "python" / "core.py").read_text() == "x = 1"
    assert (after / "python" / "core.py").read_text() == "x = 2"


def test_function_without_layers_keeps_its_configuration(tmp_path: Path) -> None:
    config = {"FunctionName": "a", "Layers": [{"Arn": "empty"}]}

    assert SharedLayers(tmp_path, lambda layer: None).mounted(config) is config


def test_process_starts_with_the_shared_folders_also_when_it_starts_again(tmp_path: Path) -> None:
    class Process:
        def __init__(self) -> None:
            self.config: dict[str, Any] = {"Layers": ["core"]}
            self.starts: list[list[Path]] = []

        def _spawn(self) -> None:
            self.starts.append(folders(self.config))

    SharedLayers(tmp_path, lambda layer: zipped(core="x = 1")).install(Process)
    process = Process()

    process._spawn()
    process._spawn()

    assert process.starts[0] == process.starts[1]
