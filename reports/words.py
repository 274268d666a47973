"""A report in the reader's language: sentences from `i18n/*.yaml`, numbers by the rules of the locale."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from reports.content import Cell, Column, Value
from sim.errors import UserError

LANGUAGES = ("en", "pt-BR")

_FOLDER = Path(__file__).parent / "i18n"
_NBSP = "\u00a0"  # a number and its unit stay on one line


@cache
def load_texts(lang: str) -> dict[str, str]:
    """Returns every text of a language by its dotted key."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - a tenth of a second that other commands need not pay

    return _flat(YAML(typ="safe").load(_FOLDER / f"{lang}.yaml"), "")


@cache
def load_said(lang: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Returns what the simulation itself says, as a pattern, with the sentence for it in a language."""
    path = _FOLDER / f"said.{lang}.yaml"
    if not path.is_file():
        return ()
    from ruamel.yaml import YAML  # noqa: PLC0415 - see load_texts

    entries = YAML(typ="safe").load(path)
    return tuple((_pattern(entry["said"]), entry["here"]) for entry in entries)


def _pattern(text: str) -> re.Pattern[str]:
    parts = (re.escape(before) + (f"(?P<{name}>.+?)" if name else "") for before, name, _, _ in Formatter().parse(text))
    return re.compile("".join(parts))


def placeholders(text: str) -> set[str]:
    """Returns the names that a text leaves to be filled in."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@dataclass(frozen=True, slots=True)
class Words:
    """One language.

    Example:
        >>> words = Words.of("pt-BR")
        >>> words.number(1234.5), words.share(0.123), words.duration(0.25)
        ('1.234', '12,3%', '250\\xa0ms')
    """

    lang: str
    texts: dict[str, str]
    point: str
    comma: str
    percent: str

    @classmethod
    def of(cls, lang: str) -> Words:
        """Returns a language by its tag.

        Raises:
            UserError: not one of `LANGUAGES`.
        """
        by_name = {name.lower(): name for name in LANGUAGES}
        known = by_name.get(lang.lower(), by_name.get({"pt": "pt-br"}.get(lang.lower(), "")))
        if known is None:
            raise UserError(f"--lang: unknown language {lang!r}; known: {', '.join(LANGUAGES)}")
        portuguese = known == "pt-BR"
        return cls(
            lang=known,
            texts=load_texts(known),
            point="," if portuguese else ".",
            comma="." if portuguese else ",",
            percent="%" if portuguese else f"{_NBSP}%",
        )

    def __call__(self, key: str, **values: object) -> str:
        """Returns the text of a key, its placeholders filled; numbers among the values are written by the locale."""
        shown = {name: each if isinstance(each, str) else self.number(each) for name, each in values.items()}
        return self.texts[key].format(**shown)

    def said(self, text: str) -> str:
        """Returns a sentence of the simulation in this language, its numbers by the locale; an unknown one as it is."""
        for pattern, here in load_said(self.lang):
            match = pattern.fullmatch(text)
            if match is not None:
                return here.format(**{name: self._local_number(value) for name, value in match.groupdict().items()})
        return text

    def has(self, key: str) -> bool:
        """Returns whether the language has a text of that key."""
        return key in self.texts

    def number(self, value: Any, digits: int = 3) -> str:
        """Writes a number to so many significant digits, whole numbers in full; a dash where there is none."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        if value == int(value) or abs(value) >= 10**digits:
            return self._local(f"{value:,.0f}")
        return self._local(f"{Decimal(f'{value:.{digits}g}'):f}")

    def count(self, value: Any) -> str:
        """Writes a whole number in full."""
        return "–" if value is None else self._local(f"{value:,.0f}")

    def share(self, value: Any, digits: int = 3) -> str:
        """Writes a fraction as a percentage."""
        return "–" if value is None else f"{self.number(100 * value, digits)}{self.percent}"

    def signed_share(self, value: float) -> str:
        """Writes a change as a percentage with its sign."""
        sign = "+" if value > 0 else "−" if value < 0 else "±"
        return f"{sign}{self.number(abs(100 * value), 2)}{self.percent}"

    def duration(self, seconds: float | None) -> str:
        """Writes a duration in the unit that suits it."""
        if seconds is None:
            return "–"
        if abs(seconds) < 1:
            return f"{self.number(1000 * seconds)}{_NBSP}ms"
        if abs(seconds) < 600:
            return f"{self.number(seconds)}{_NBSP}s"
        if abs(seconds) < 2 * 3600:
            return f"{self.number(seconds / 60)}{_NBSP}min"
        return f"{self.number(seconds / 3600)}{_NBSP}h"

    def milliseconds(self, value: float | None) -> str:
        """Writes a duration given in milliseconds."""
        return self.duration(None if value is None else value / 1000)

    def load(self, value: float | None, unit: str) -> str:
        """Writes a load with its unit: 85 users, 2.5 requests/s."""
        if value is None:
            return self("load.own")
        form = "one" if value == 1 else "many"
        return f"{self.number(value)}{_NBSP}{self(f'load.{unit}.{form}')}"

    def cell(self, cell: Value | Cell, column: Column) -> str:
        """Writes a cell of a table."""
        value, kind = (cell.value, cell.kind) if isinstance(cell, Cell) else (cell, column.kind)
        return self.value(value, kind)

    def value(self, value: Value, kind: str) -> str:
        """Writes a value as its kind asks."""
        if value is None:
            return "–"
        if isinstance(value, bool):
            return self("word.yes" if value else "word.no")
        if isinstance(value, str):
            return value
        match kind:
            case "count":
                return self.count(value)
            case "share":
                return self.share(value)
            case "seconds":
                return self.duration(value)
            case "gib":
                return self._local(f"{value:,.2f}")
            case "money":
                return self._local(f"{value:,.2f}" if value >= 0.1 else f"{value:.3g}")
            case "flag":
                return str(value)
            case "at_least":
                return self("answer.at_least", load=value)
        return self.number(value)

    def _local_number(self, text: str) -> str:
        """Writes a number that stands as text by the rules of the locale; other texts as they are."""
        return self._local(text) if re.fullmatch(r"-?\d{1,3}(,\d{3})*(\.\d+)?|-?\d+(\.\d+)?", text) else text

    def _local(self, text: str) -> str:
        """Turns the marks of a number as Python writes it into those of the locale, and its hyphen into a minus."""
        swapped = text.replace(",", "\0").replace(".", self.point).replace("\0", self.comma)
        return swapped.replace("-", "−") if swapped.startswith("-") else swapped


def _flat(node: Any, prefix: str) -> dict[str, str]:
    if not isinstance(node, dict):
        return {prefix: str(node)}
    found: dict[str, str] = {}
    for key, value in node.items():
        found |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found
