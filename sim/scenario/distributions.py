"""How a quantity varies from draw to draw: of tokens, of turns, or of time.

The parameters are what people can read off a dashboard (a median and a p95), not those of textbooks. Times are the
same kinds with parameters in seconds (`LognormalTime` is a `Lognormal`): `match` on the plain kind serves both.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, GetJsonSchemaHandler, Tag, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sim.scenario.part import Named, kind_of
from sim.scenario.units import Duration, format_duration

_LOGNORMAL_P95_Z = 1.6448536269514722  # the standard normal's 95th percentile


class Fixed(Named):
    """Always the same value; a plain number means it too."""

    kind: ClassVar[str] = "fixed"
    value: float = Field(ge=0, description="The value of every draw.")

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {"value": data[cls.kind]} if set(data) == {cls.kind} else data
        return {"value": data}

    @model_serializer(mode="plain")
    def _write(self) -> float:
        return self.value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _fixed_schema({"type": "number", "minimum": 0})

    def smallest(self) -> float:
        """Returns the least value that a draw can have."""
        return self.value


class Uniform(Named):
    """Every value between two bounds is equally likely."""

    kind: ClassVar[str] = "uniform"
    low: float = Field(ge=0, description="The least value.")
    high: float = Field(ge=0, description="The greatest value.")

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low must not exceed high; got low {self.low:g}, high {self.high:g}")
        return self

    def smallest(self) -> float:
        """Returns the least value that a draw can have."""
        return self.low


class UniformRatio(Named):
    """Uniform between mean·(1 − ratio) and mean·(1 + ratio): `vllm bench serve --random-range-ratio`."""

    kind: ClassVar[str] = "uniform_ratio"
    mean: float = Field(gt=0, description="The middle of the range.")
    ratio: float = Field(ge=0, lt=1, description="Half the width of the range, as a share of the mean.")

    def smallest(self) -> float:
        """Returns the least value that a draw can have."""
        return max(1, math.floor(self.mean * (1 - self.ratio)))


class Normal(Named):
    """The normal distribution, cut off below."""

    kind: ClassVar[str] = "normal"
    mean: float = Field(ge=0, description="The mean before the cut.")
    std: float = Field(ge=0, description="The standard deviation before the cut.")
    min: float = Field(default=1, ge=0, description="Smaller draws are raised to this.")

    def smallest(self) -> float:
        """Returns the least value that a draw can have."""
        return self.min if self.std else max(self.min, self.mean)


class Lognormal(Named):
    """The log-normal distribution: most values near the median, a long tail above."""

    kind: ClassVar[str] = "lognormal"
    median: float = Field(gt=0, description="Half the draws lie below.")
    p95: float = Field(gt=0, description="95 % of the draws lie below.")
    max: float | None = Field(default=None, gt=0, description="Greater draws are lowered to this.")

    @model_validator(mode="after")
    def _ordered(self) -> Lognormal:
        if self.p95 < self.median:
            raise ValueError(f"p95 must not be below the median; got median {self.median:g}, p95 {self.p95:g}")
        if self.max is not None and self.max < self.median:
            raise ValueError(f"max must not be below the median; got median {self.median:g}, max {self.max:g}")
        return self

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm."""
        return math.log(self.p95 / self.median) / _LOGNORMAL_P95_Z

    def smallest(self) -> float:
        """Returns the least value that a draw can have."""
        return 0.0 if self.p95 > self.median else self.median


class Exponential(Named):
    """The exponential distribution: the time between independent events."""

    kind: ClassVar[str] = "exponential"
    mean: float = Field(gt=0, description="The mean.")

    def smallest(self) -> float:
        """Returns the least value that a draw can have."""
        return 0.0


class Geometric(Named):
    """A count from 1 up, where each further one is as likely as the last: turns of a conversation."""

    kind: ClassVar[str] = "geometric"
    mean: float = Field(ge=1, description="The mean before the cap.")
    max: int | None = Field(default=None, ge=1, description="Greater draws are lowered to this.")

    def smallest(self) -> float:
        """Returns the least value that a draw can have."""
        return 1.0


class Empirical(Named):
    """Draws from the values of a file: one number a line, or a column of a CSV file with a header."""

    kind: ClassVar[str] = "empirical"
    file: str = Field(min_length=1, description="The file, relative to the scenario. Times are in seconds.")
    column: str | None = Field(default=None, description="The column, when the file is a CSV with a header.")

    def smallest(self) -> float:
        """Returns the least value that a draw can have, as far as known without reading the file."""
        return 0.0


class FixedTime(Fixed):
    """Always the same time; a plain duration means it too."""

    value: Duration = Field(description="The duration of every draw.")

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {"value": data[cls.kind]} if set(data) == {cls.kind} else data
        return {"value": data}

    @model_serializer(mode="plain")
    def _write(self) -> str:  # type: ignore[override]  # the same value with its unit
        return format_duration(self.value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        duration = handler(core_schema)  # resolves to the schema of `value`
        return _fixed_schema(handler.resolve_ref_schema(duration)["properties"]["value"])


class UniformTime(Uniform):
    """Every time between two bounds is equally likely."""

    low: Duration = Field(description="The least time.")
    high: Duration = Field(description="The greatest time.")


class NormalTime(Normal):
    """The normal distribution of a time, cut off below."""

    mean: Duration = Field(description="The mean before the cut.")
    std: Duration = Field(description="The standard deviation before the cut.")
    min: Duration = Field(default=0.0, description="Smaller draws are raised to this.")


class LognormalTime(Lognormal):
    """The log-normal distribution of a time: most values near the median, a long tail above."""

    median: Duration = Field(gt=0, description="Half the draws lie below.")
    p95: Duration = Field(gt=0, description="95 % of the draws lie below.")
    max: Duration | None = Field(default=None, gt=0, description="Greater draws are lowered to this.")


class ExponentialTime(Exponential):
    """The exponential distribution of a time."""

    mean: Duration = Field(gt=0, description="The mean.")


def _fixed_schema(plain: JsonSchemaValue) -> JsonSchemaValue:
    wrapped = {"type": "object", "properties": {"fixed": plain}, "required": ["fixed"], "additionalProperties": False}
    return {"anyOf": [plain, wrapped]}


def _number_or_kind(value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "fixed" if is_number else kind_of(value)


def _time_or_kind(value: Any) -> str | None:
    is_time = isinstance(value, int | float | str) and not isinstance(value, bool)
    return "fixed" if is_time else kind_of(value)


Distribution = Annotated[
    Annotated[Fixed, Tag("fixed")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[UniformRatio, Tag("uniform_ratio")]
    | Annotated[Normal, Tag("normal")]
    | Annotated[Lognormal, Tag("lognormal")]
    | Annotated[Exponential, Tag("exponential")]
    | Annotated[Geometric, Tag("geometric")]
    | Annotated[Empirical, Tag("empirical")],
    Discriminator(_number_or_kind),
]
"""A distribution of tokens or counts."""

DurationDistribution = Annotated[
    Annotated[FixedTime, Tag("fixed")]
    | Annotated[UniformTime, Tag("uniform")]
    | Annotated[NormalTime, Tag("normal")]
    | Annotated[LognormalTime, Tag("lognormal")]
    | Annotated[ExponentialTime, Tag("exponential")]
    | Annotated[Empirical, Tag("empirical")],
    Discriminator(_time_or_kind),
]
"""A distribution of times; parameters and draws in seconds."""

__all__ = [
    "Distribution",
    "DurationDistribution",
    "Empirical",
    "Exponential",
    "Fixed",
    "Geometric",
    "Lognormal",
    "Normal",
    "Uniform",
    "UniformRatio",
]
