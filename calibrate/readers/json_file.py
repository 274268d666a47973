"""JSON files of benchmark tools: read whole, and complained about with line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from sim.errors import UserError
from sim.workload.csv_columns import LATEST_SECONDS
from sim.workload.text_files import open_lines


class JsonFile:
    """One JSON object from a file, plain or gzip.

    Args:
        path: the file.
        expects: what it should be, for errors: "the result of `vllm bench serve --save-result`".

    Raises:
        UserError: it cannot be read, is empty, cut short, or no JSON object.
    """

    def __init__(self, path: Path, expects: str) -> None:
        self.path = path
        self._expects = expects
        with open_lines(path) as lines:
            self._text = lines.text.read()
        if not self._text.strip():
            raise UserError(f"{path}:1:1: empty; expected {expects}")
        try:
            self.root = json.loads(self._text)
        except json.JSONDecodeError as error:
            cut = error.pos >= len(self._text.rstrip()) or error.msg.startswith("Unterminated")
            hint = "; the file ends too early: is it complete?" if cut else ""
            raise UserError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}{hint}") from None
        if not isinstance(self.root, dict):
            raise UserError(f"{path}:1:1: got a JSON {type(self.root).__name__}; expected {expects}")

    def fail(self, key: str, what: str) -> NoReturn:
        """Raises the error that says what is wrong with a key, at the place of its first appearance."""
        place = max(0, self._text.find(f'"{key.rsplit(".", maxsplit=1)[-1]}"'))
        line = self._text.count("\n", 0, place) + 1
        column = place - self._text.rfind("\n", 0, place)
        raise UserError(f"{self.path}:{line}:{column}: {key}: {what}")

    def column(self, key: str, length: int | None = None) -> list[Any]:
        """Returns a list of the root, of this length where one is given."""
        values = self.root.get(key)
        if not isinstance(values, list):
            self.fail(key, f"missing; expected {self._expects}")
        if length is not None and len(values) != length:
            self.fail(key, f"{len(values)} entries, but there are {length} requests")
        return values


def is_number(value: Any) -> bool:
    """Returns whether a JSON value is a number from 0 to the longest time that a recording may have."""
    return type(value) in (int, float) and 0 <= value <= LATEST_SECONDS


def is_count(value: Any) -> bool:
    """Returns whether a JSON value is a whole number of at least 1."""
    return type(value) is int and 1 <= value < 2**62
