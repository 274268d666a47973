"""Changes to a scenario by dotted keys: `--set server.max_num_seqs=64`, and the entries of `variants`."""

from __future__ import annotations

from typing import Any

from sim.scenario.problems import Path, dotted
from sim.scenario.server import Flags, Server
from sim.scenario.source import parse_value


def parse_override(text: str) -> tuple[str, Any]:
    """Returns key and value of `key=value`; the value is read as YAML.

    Raises:
        ValueError: no `=`, no key, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError("expected KEY=VALUE, for example server.max_num_seqs=64")
    return key.strip(), parse_value(value)


def full_path(key: str, data: Any) -> Path:
    """Returns the path that a dotted key means in `data`.

    `server.max_num_seqs` is short for `server.flags.max_num_seqs`; an item of a list is named by its position or by
    its `name`: `workload.classes.chat.turns`.

    Raises:
        ValueError: the key goes into something that is neither a mapping nor a list, or names no item of a list.
    """
    parts = key.split(".")
    if parts[0] == "server" and len(parts) > 1 and parts[1] in Flags.model_fields.keys() - Server.model_fields.keys():
        parts.insert(1, "flags")
    path: list[str | int] = []
    for part in parts:
        if not part:
            raise ValueError(f"an empty part between dots; got {key!r}")
        if isinstance(data, list):
            index = _index(data, part, dotted(tuple(path)))
            path.append(index)
            data = data[index]
        elif data is None or isinstance(data, dict):
            path.append(part)
            data = data.get(part) if data else None
        else:
            raise ValueError(f"{dotted(tuple(path))} holds {data!r}, which has no key {part!r}")
    return tuple(path)


def replace(data: Any, path: Path, value: Any) -> Any:
    """Returns `data` with the value at `path` replaced; what is shared with the old data is not touched."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(data, list):
        assert isinstance(part, int), f"full_path gives positions for lists; got {part!r}"
        return [*data[:part], replace(data[part], rest, value), *data[part + 1 :]]
    old = data or {}
    return {**old, part: replace(old.get(part), rest, value)}


def _index(items: list[Any], part: str, where: str) -> int:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    known = ", ".join(str(name) for name in names if name is not None) or f"0 to {len(items) - 1}"
    raise ValueError(f"{where} has no item {part!r}; items: {known}")
