"""What a profile's `step_time` section may hold: three kinds of model, with units and errors on every number."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from sim.engine.fitted import StepCoefficients, Table
from sim.engine.recorded import LinearCost


class Part(BaseModel):
    """A frozen piece of a profile that refuses unknown keys and does not convert types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Estimate(Part):
    """A fitted number with its uncertainty."""

    value: float = Field(ge=0, allow_inf_nan=False)
    """In the unit that the key names."""

    stderr: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Standard error, same unit; none where the number was set by hand."""

    remark: str | None = None
    """What the fit says of it: `at boundary`, `not identified by this data`, `from a prior`."""

    @model_validator(mode="before")
    @classmethod
    def _plain_number(cls, data: Any) -> Any:
        if isinstance(data, int | float) and not isinstance(data, bool):
            return {"value": data}
        return data


def _plain(estimate: Estimate | None) -> Any:
    """A number without an error or remark is written as a number."""
    if estimate is None:
        return None
    full = {"value": estimate.value, "stderr": estimate.stderr, "remark": estimate.remark}
    given = {key: value for key, value in full.items() if value is not None}
    return estimate.value if len(given) == 1 else given


Coefficient = Annotated[Estimate, PlainSerializer(_plain)]


def _as_points(data: Any) -> Any:
    """YAML has lists; the table is a tuple of pairs."""
    if isinstance(data, list | tuple) and all(isinstance(row, list | tuple) and len(row) == 2 for row in data):
        return tuple((row[0], row[1]) for row in data)
    raise ValueError("expected a list of pairs [count, microseconds], such as [[1, 5100], [32, 7100]]")


def _as_tuple(data: Any) -> Any:
    return tuple(data) if isinstance(data, list) else data


Points = Annotated[tuple[tuple[int, float], ...], BeforeValidator(_as_points)]
ZERO = Estimate(value=0.0)


class MoeFloor(Part):
    """The part of the floor that grows with the experts touched: growth · (1 − (1 − k/E)^tokens)^exponent."""

    growth_us: Coefficient
    num_experts: int = Field(gt=0)
    experts_per_token: int = Field(gt=0)
    exponent: float = Field(default=1.0, gt=0, le=1)


class Covariance(Part):
    """Covariance of the estimates, in the units of the named coefficients (the product of two of them)."""

    names: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
    matrix: Annotated[tuple[tuple[float, ...], ...], BeforeValidator(lambda rows: tuple(_as_tuple(r) for r in rows))]

    @model_validator(mode="after")
    def _square(self) -> Self:
        size = len(self.names)
        if len(self.matrix) != size or any(len(row) != size for row in self.matrix):
            raise ValueError(f"{size} names need a matrix of {size} rows of {size} numbers")
        for i in range(size):
            for j in range(i):
                if not math.isclose(self.matrix[i][j], self.matrix[j][i], rel_tol=1e-6, abs_tol=1e-12):
                    raise ValueError(
                        f"not symmetric at {self.names[i]}, {self.names[j]}: "
                        f"{self.matrix[i][j]} and {self.matrix[j][i]}"
                    )
            if self.matrix[i][i] < 0:
                raise ValueError(f"the variance of {self.names[i]} is negative: {self.matrix[i][i]}")
        return self


class FittedStepTime(Part):
    """`kind: fitted`: the terms of `sim.engine.fitted.StepCoefficients`, with units and errors."""

    kind: Literal["fitted"]
    floor_us: Coefficient = ZERO
    decode_table_us: Points | None = None
    moe: MoeFloor | None = None
    per_token_us: Coefficient = ZERO
    compute_table_us: Points | None = None
    tile_tokens: int = Field(default=1, ge=1)
    overlap: Coefficient = Estimate(value=1.0)
    smoothness: Coefficient = ZERO
    per_attention_pair_ns: Coefficient = ZERO
    per_decode_us: Coefficient = ZERO
    per_decode_context_token_ns: Coefficient = ZERO
    per_chunk_context_token_ns: Coefficient = ZERO
    per_request_us: Coefficient = ZERO
    graph_sizes: Annotated[tuple[int, ...], BeforeValidator(_as_tuple)] = ()
    mixed_graph_us: Coefficient = ZERO
    mixed_eager_us: Coefficient = ZERO
    per_mixed_decode_context_token_ns: Coefficient = ZERO
    host_us: Coefficient = ZERO
    host_per_request_us: Coefficient = ZERO
    covariance: Covariance | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.coefficients()  # raises ValueError with the reason
        if self.covariance is not None:
            known = {name for name in type(self).model_fields if isinstance(getattr(self, name), Estimate)}
            if unknown := [n for n in self.covariance.names if n not in known and n != "moe.growth_us"]:
                raise ValueError(f"covariance: {unknown[0]} is no coefficient of this model")
        return self

    def coefficients(self) -> StepCoefficients:
        """Returns the numbers as the model wants them, in nanoseconds."""
        moe = self.moe
        return StepCoefficients(
            floor_ns=1e3 * self.floor_us.value,
            decode_table=_in_ns(self.decode_table_us),
            moe_growth_ns=1e3 * moe.growth_us.value if moe else 0.0,
            moe_exponent=moe.exponent if moe else 1.0,
            num_experts=moe.num_experts if moe else 0,
            experts_per_token=moe.experts_per_token if moe else 0,
            token_ns=1e3 * self.per_token_us.value,
            compute_table=_in_ns(self.compute_table_us),
            tile=self.tile_tokens,
            overlap=self.overlap.value,
            smoothness=self.smoothness.value,
            attention_pair_ns=self.per_attention_pair_ns.value,
            decode_ns=1e3 * self.per_decode_us.value,
            decode_context_ns=self.per_decode_context_token_ns.value,
            chunk_context_ns=self.per_chunk_context_token_ns.value,
            request_ns=1e3 * self.per_request_us.value,
            graph_sizes=self.graph_sizes,
            mixed_graph_ns=1e3 * self.mixed_graph_us.value,
            mixed_eager_ns=1e3 * self.mixed_eager_us.value,
            mixed_decode_context_ns=self.per_mixed_decode_context_token_ns.value,
            host_ns=1e3 * self.host_us.value,
            host_request_ns=1e3 * self.host_per_request_us.value,
        )


def _in_ns(points: Points | None) -> Table:
    return tuple((count, 1e3 * us) for count, us in points or ())


class CollectiveTable(Part):
    """One kind of message between the GPUs of a server, which tables of a single GPU do not hold."""

    name: str
    per_step: int = Field(gt=0)
    time_us: Points
    """By the tokens of the step."""


class OperatorTableStepTime(Part):
    """`kind: operator_table`: measured operators, added up (`sim.engine.operator_table`)."""

    kind: Literal["operator_table"]
    tables: str = Field(min_length=1)
    """Folder of the tables (`sim.engine.operator_files`): an absolute path, or one beside the shipped profiles."""
    graph_sizes: Annotated[tuple[int, ...], BeforeValidator(_as_tuple)] = ()
    step_us: Coefficient = ZERO
    """What a step costs beside its operators."""
    collectives: Annotated[tuple[CollectiveTable, ...], BeforeValidator(_as_tuple)] = ()
    expert_parallel_size: int = Field(default=1, gt=0)
    """GPUs over which the routed experts are spread, each with as many tokens of its own."""


class LinearStepTime(Part):
    """`kind: linear`: whole microseconds, as recorded schedules state their cost."""

    kind: Literal["linear"]
    base_us: int = Field(ge=0)
    per_token_us: int = Field(default=0, ge=0)
    per_seq_us: int = Field(default=0, ge=0)
    per_1k_context_us: int = Field(default=0, ge=0)

    def model(self, name: str, *, calibrated: bool) -> LinearCost:
        """Returns the model of step times under the name of its profile."""
        return LinearCost(self.base_us, self.per_token_us, self.per_seq_us, self.per_1k_context_us, name, calibrated)
