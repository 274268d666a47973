"""The flags that a search may set and the values that each may take: a finite space, whose size is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from sim.deployment import ANALYTICAL
from sim.engine.profile import load_profile
from sim.errors import UserError
from sim.hardware import find_gpu
from sim.models import find_model
from sim.scenario.explain import explain, suggestion
from sim.scenario.model import Scenario
from sim.scenario.server import Flags, Server
from sim.sweep.axes import Axis, as_text, parse_axes

Parameters = dict[str, Any]
"""One configuration: dotted key -> value, as `sim.scenario.load.override` takes them."""

_SERVER_KEYS = (
    "tensor_parallel_size", "pipeline_parallel_size", "gpu", "model", "interconnect", "profile",
)  # fmt: skip
_EXAMPLE = "for example server.max_num_seqs=16:512:log or server.kv_cache_dtype=auto,fp8"


@dataclass(frozen=True, slots=True)
class Space:
    """Every combination of the axes' values.

    Attributes:
        axes: in the order given; every key is written in full (`server.max_num_seqs`).
    """

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """How many configurations there are."""
        return math.prod(len(axis.values) for axis in self.axes)

    def identity(self, parameters: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns a configuration as the place of each value on its axis: hashable, and 1 is not True."""
        values = ((axis, parameters[axis.key]) for axis in self.axes)
        return tuple(_places(axis)[type(value), value] for axis, value in values)

    def at(self, identity: Sequence[int]) -> Parameters:
        """Returns the configuration at these places."""
        return {axis.key: axis.values[place] for axis, place in zip(self.axes, identity, strict=True)}

    def all(self) -> Iterator[tuple[int, ...]]:
        """Yields every configuration; the last axis changes fastest."""
        for number in range(self.size):
            places, rest = [], number
            for axis in reversed(self.axes):
                rest, place = divmod(rest, len(axis.values))
                places.append(place)
            yield tuple(reversed(places))

    def neighbours(self, identity: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yields the configurations that differ in one flag: by one step, or, of values without an order, by any."""
        for position, axis in enumerate(self.axes):
            here = identity[position]
            steps = (here - 1, here + 1) if is_ordered(axis) else range(len(axis.values))
            for place in steps:
                if 0 <= place < len(axis.values) and place != here:
                    yield (*identity[:position], place, *identity[position + 1 :])

    def nearest(self, resolved: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the configuration that is nearest to known values; an axis that has no number near takes its first.

        Args:
            resolved: dotted key -> the value that a server has.
        """
        return tuple(_nearest(axis, resolved.get(axis.key)) for axis in self.axes)


def is_ordered(axis: Axis) -> bool:
    """Whether the values are numbers, so that there are more and less."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values)


@lru_cache(maxsize=64)
def _places(axis: Axis) -> dict[tuple[type, Any], int]:
    return {(type(value), value): place for place, value in enumerate(axis.values)}


def parse_space(texts: list[str], scenario: Scenario) -> Space:
    """Reads the texts of all `--vary`.

    Raises:
        UserError: one cannot be read, names no flag, or gives a value that the flag cannot have.
    """
    if not texts:
        raise UserError(f"--vary: missing, so there is nothing to choose from; {_EXAMPLE}")
    if scenario.server.kind != "vllm":
        raise UserError(
            f"server.kind: flags of vLLM are varied; the scenario's server is of kind {scenario.server.kind}"
        )
    axes = parse_axes([_with_full_key(text) for text in texts])
    for axis in axes:
        for value in axis.values:
            _check_value(axis.key, value, scenario)
    return Space(tuple(Axis(axis.key, _sorted(axis)) for axis in axes))


def full_key(name: str) -> str:
    """Returns the dotted key of a flag: of `server.max_num_seqs`, `max_num_seqs` or `--max-num-seqs`.

    Raises:
        ValueError: there is no such flag; the text says which there are.
    """
    short = name.strip().removeprefix("server.").removeprefix("flags.")
    short = short.removeprefix("--").replace("-", "_")
    known = {field: f"server.{field}" for field in (*Flags.model_fields, *_SERVER_KEYS)}
    if short not in known:
        raise ValueError(f"no flag of vllm serve; got {name.strip()!r}; {suggestion(short, known, noun='flags')}")
    return known[short]


def _with_full_key(text: str) -> str:
    name, equals, values = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--vary {text}: expected FLAG=VALUE,VALUE or FLAG=FROM:TO:log, {_EXAMPLE}")
    try:
        return f"{full_key(name)}={values}"
    except ValueError as error:
        raise UserError(f"--vary {text}: {error}") from None


def _check_value(key: str, value: Any, scenario: Scenario) -> None:
    """Checks a value as a scenario file would have it checked; what it names has to exist."""
    name = key.removeprefix("server.")
    data: dict[str, Any] = {"model": "any", "gpu": "any"}
    data |= {"flags": {name: value}} if name in Flags.model_fields else {name: value}
    try:
        Server.model_validate(data)
        _check_named(name, value, scenario)
    except UserError as error:
        raise UserError(f"--vary {key}={as_text(value)}: {str(error).removeprefix(f'{name}: ')}") from None
    except ValidationError as error:
        _, message, _ = next(iter(explain(error, Server, data)))
        raise UserError(f"--vary {key}={as_text(value)}: {message}") from None


def _check_named(name: str, value: Any, scenario: Scenario) -> None:
    match name:
        case "gpu":
            find_gpu(value)
        case "model":
            find_model(scenario.locate(value))
        case "profile" if value != ANALYTICAL:
            load_profile(scenario.locate(value))


def _sorted(axis: Axis) -> tuple[Any, ...]:
    """Returns numbers in order, so that a step is a step; other values as they were given."""
    return tuple(sorted(axis.values)) if is_ordered(axis) else axis.values


def _nearest(axis: Axis, value: Any) -> int:
    if is_ordered(axis) and isinstance(value, int | float):
        return min(range(len(axis.values)), key=lambda place: abs(axis.values[place] - value))
    texts = [as_text(each) for each in axis.values]
    return texts.index(as_text(value)) if as_text(value) in texts else 0
