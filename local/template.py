"""template.yaml as data, its loops (Fn::ForEach) written out: for the emulator, and for tests that read it."""

from __future__ import annotations

from typing import Any

from samtranslator.yaml_helper import yaml_parse

from local.place import ROOT

LOOP = "Fn::ForEach::"
EXTENSIONS = "AWS::LanguageExtensions"


def load() -> dict[str, Any]:
    template: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text())
    template["Resources"] = _looked_up(_written_out(template["Resources"]), template["Mappings"])
    (template["Transform"],) = (name for name in template["Transform"] if name != EXTENSIONS)
    return template


def _written_out(value: Any) -> Any:
    """Each loop replaced by its body, once for every item of its list."""
    if isinstance(value, list):
        return [_written_out(item) for item in value]
    if not isinstance(value, dict):
        return value
    out: dict[str, Any] = {}
    for key, inner in value.items():
        if key.startswith(LOOP):
            variable, items, body = inner
            for item in items:
                out |= _written_out(_with(body, variable, item))
        else:
            out[key] = _written_out(inner)
    return out


def _with(value: Any, variable: str, item: str) -> Any:
    if isinstance(value, str):
        return value.replace("${" + variable + "}", item)
    if isinstance(value, list):
        return [_with(inner, variable, item) for inner in value]
    if not isinstance(value, dict):
        return value
    if value == {"Ref": variable}:
        return item
    out = {_with(key, variable, item): _with(inner, variable, item) for key, inner in value.items()}
    text = out.get("Fn::Sub")
    # Nothing is left to substitute: it is a plain string, which may stand where no function may.
    return text if isinstance(text, str) and "${" not in text else out


def _looked_up(value: Any, mappings: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_looked_up(inner, mappings) for inner in value]
    if not isinstance(value, dict):
        return value
    path = value.get("Fn::FindInMap")
    if path and all(isinstance(step, str) for step in path):
        name, key, attribute = path
        return mappings[name][key][attribute]
    return {key: _looked_up(inner, mappings) for key, inner in value.items()}
