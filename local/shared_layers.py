"""Unpacks each Lambda layer once for all functions. MiniStack would unpack it again for every process.

The compiled modules are shared as well. Python writes them next to the sources, so only the first cold start
compiles."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Config = dict[str, Any]
# Where MiniStack's Python worker looks for unpacked layers.
LAYER_FOLDERS = "_LAMBDA_LAYERS_DIRS"


class SharedLayers:
    """The unpacked layers of the local cloud."""

    def __init__(self, folder: Path, content_of: Callable[[Any], bytes | None]) -> None:
        """`content_of` returns the zip file of a layer that a function's configuration names."""
        self._folder = folder
        self._content_of = content_of
        self._lock = threading.Lock()

    def install(self, worker: Any) -> None:
        """Replaces `_spawn` of `worker`, MiniStack's class of Python and Node.js processes.

        Each process then starts with the shared folders instead of its layers."""
        spawn = worker._spawn

        def spawned(process: Any) -> None:
            process.config = self.mounted(process.config)
            spawn(process)

        worker._spawn = spawned

    def mounted(self, config: Config) -> Config:
        """Returns the configuration without its layers.

        A variable names the folders that have the content of the layers."""
        contents = [content for layer in config.get("Layers") or [] if (content := self._content_of(layer))]
        if not contents:
            return config
        folders = os.pathsep.join(str(self._unpacked(content)) for content in contents)
        variables = {**config.get("Environment", {}).get("Variables", {}), LAYER_FOLDERS: folders}
        return type(config)({**config, "Layers": [], "Environment": {"Variables": variables}})

    def _unpacked(self, content: bytes) -> Path:
        folder = self._folder / hashlib.sha256(content).hexdigest()
        with self._lock:
            if not folder.exists():
                partial = folder.with_suffix(".partial")
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    archive.extractall(partial)
                partial.rename(folder)
        return folder
