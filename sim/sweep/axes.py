"""What a sweep varies: `server.max_num_seqs=16,64,256`, `users=10:200:10`, `server.max_num_seqs=16:512:log`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any, get_args

from sim.errors import UserError
from sim.scenario.model import Search
from sim.scenario.source import parse_value

LOADS: tuple[str, ...] = get_args(Search.model_fields["vary"].annotation)
"""The names that mean a load, as in `search.vary`; every other one is a dotted key of the scenario."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER}):({_NUMBER})")
_LADDER = re.compile(rf"({_NUMBER}):({_NUMBER}):log(?::(\d+))?")
_ALMOST_RANGE = re.compile(rf"{_NUMBER}:{_NUMBER}(?::.*)?")
_MOST_VALUES = 100_000
_EXAMPLE = "for example server.max_num_seqs=16,64 or users=10:200:10"


@dataclass(frozen=True, slots=True)
class Axis:
    """One key and the values it takes, in the order given.

    Attributes:
        key: a load (`users`), or a dotted key (`server.max_num_seqs`).
        values: plain values, as a scenario file would hold them.
    """

    key: str
    values: tuple[Any, ...]

    @property
    def is_load(self) -> bool:
        """Whether the key names a load."""
        return self.key in LOADS


def parse_axes(texts: list[str]) -> tuple[Axis, ...]:
    """Reads the texts of all `--vary`.

    Raises:
        UserError: one cannot be read, a key is there twice, or none is there.
    """
    axes = tuple(_parse_axis(text) for text in texts)
    if not axes:
        raise UserError(f"--vary: missing; {_EXAMPLE}")
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"--vary {key}: given twice; put all values in one: {key}=A,B")
    return axes


def combinations(axes: tuple[Axis, ...]) -> list[dict[str, Any]]:
    """Returns every combination of the axes' values; the last axis changes fastest."""
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values, strict=True)) for values in product(*(axis.values for axis in axes))]


def as_text(value: Any) -> str:
    """Returns a value as one writes it behind `=`; YAML reads the text back as the value."""
    if isinstance(value, str):
        return value if _reads_back(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def _parse_axis(text: str) -> Axis:
    key, equals, listed = text.partition("=")
    key = key.strip()
    if not equals or not key or not listed.strip():
        raise UserError(f"--vary {text}: expected KEY=VALUE,VALUE or KEY=FROM:TO:STEP, {_EXAMPLE}")
    if key in ("run.seeds", "run.seed"):
        raise UserError(f"--vary {text}: every point is simulated with the same seeds; their number is --seeds")
    if key.split(".")[0] in ("search", "variants"):
        raise UserError(f"--vary {text}: a sweep makes no search and no variants; vary the quantity itself, {_EXAMPLE}")
    try:
        items = parse_value(f"[{listed}]")  # a YAML list in one line, so that {…}, […] and quotes may hold commas
    except ValueError as error:
        raise UserError(f"--vary {text}: {error}") from None
    values: list[Any] = []
    for item in items:
        values += _expand(_finite(item), text)
    unique = {as_text(value): value for value in values}
    return Axis(key, tuple(unique.values()))


def _finite(item: Any) -> Any:
    """Returns infinity as the text that a scenario may hold in its place, since JSON has no number for it."""
    return f"{item:g}" if isinstance(item, float) and not math.isfinite(item) else item


def _expand(item: Any, text: str) -> list[Any]:
    """Returns the numbers of a range, both ends included, or the value itself."""
    if not isinstance(item, str):
        return [item]
    ladder = _LADDER.fullmatch(item)
    if ladder is not None:
        return _climb(Decimal(ladder[1]), Decimal(ladder[2]), None if ladder[3] is None else int(ladder[3]), text)
    match = _RANGE.fullmatch(item)
    if match is None:
        if _ALMOST_RANGE.fullmatch(item):
            raise UserError(
                f"--vary {text}: a range is FROM:TO:STEP in numbers, as in 10:200:10, or FROM:TO:log; got {item}"
            )
        return [item]
    first, last, step = (Decimal(number) for number in match.groups())
    if step == 0 or (last - first) / step < 0:
        raise UserError(f"--vary {text}: the step must lead from {first} to {last}; got {step}")
    number = int((last - first) / step) + 1
    if number > _MOST_VALUES:
        raise UserError(f"--vary {text}: {number} values; at most {_MOST_VALUES}")
    # Decimal, so that 0.1:0.3:0.1 ends at 0.3 and not before 0.30000000000000004.
    return [_plain(first + index * step) for index in range(number)]


def _climb(first: Decimal, last: Decimal, number: int | None, text: str) -> list[Any]:
    """Returns doublings from the first number to the last, both included; or so many numbers at equal ratios.

    Those between whole numbers are whole, others have three digits.
    """
    if not 0 < first <= last:
        raise UserError(f"--vary {text}: a logarithmic range climbs from a number above 0; got {first}:{last}:log")
    if number is not None and not 2 <= number <= _MOST_VALUES:
        raise UserError(
            f"--vary {text}: FROM:TO:log:NUMBER has 2 values at least, {_MOST_VALUES} at most; got {number}"
        )
    ratio = 2.0 if number is None else float(last / first) ** (1 / (number - 1))
    between = math.ceil(math.log2(last / first) - 1e-9) if number is None else number - 1
    whole = all(end == end.to_integral_value() for end in (first, last))
    climbed = [float(first) * ratio**step for step in range(1, between)]
    return [_plain(first), *(round(each) if whole else float(f"{each:.3g}") for each in climbed), _plain(last)]


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


def _reads_back(text: str) -> bool:
    try:
        return bool(parse_value(text) == text)
    except ValueError:
        return False
