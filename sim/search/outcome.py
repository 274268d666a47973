"""What became of a configuration: its measures, and by how much it breaks what is required of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sim.capacity import CapacityResult, Point
from sim.capacity.diagnosis import diagnose
from sim.results.rounding import rounded
from sim.results.said_once import said_once
from sim.scenario.model import Scenario
from sim.search.measures import Measure, Prices, answer_point

PREEMPTIONS = "preemptions"
OBJECTIVES = "objectives"
NO_DATA = "no data"
CONSTRAINTS = (OBJECTIVES, PREEMPTIONS)
"""What is required unless it is allowed; that a server starts is required of all."""

_MOST_EXCESS = 1e6  # an objective without any data exceeds its bound without limit; sums of violations must stay finite


@dataclass(frozen=True, slots=True)
class Outcome:
    """One configuration, simulated.

    Attributes:
        measures: name -> value in the unit of the measure, six significant digits; None without data.
        violations: constraint -> by how much it is broken; 0 where it holds.
        load: where it was measured: the answer of the capacity search (the lowest load tried where none holds), or the
            one load.
        low, high: 95 % interval of the answer, where one was searched.
        ceiling_reached: whether the search ended before anything broke, so that the answer is a lower bound.
        binding_objective: what breaks at the next load, or at the one.
        binding_resource: the resource behind it.
        preemptions: mean over the seeds.
        num_runs: simulations made for it.
        calibrated: whether its step times were fitted to a real server.
        warnings: said once each.
    """

    measures: Mapping[str, float | None]
    violations: Mapping[str, float]
    load: float | None
    low: float | None = None
    high: float | None = None
    ceiling_reached: bool = False
    binding_objective: str | None = None
    binding_resource: str | None = None
    preemptions: float = 0.0
    num_runs: int = 0
    calibrated: bool = False
    warnings: tuple[str, ...] = field(default=())

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds."""
        return all(value <= 0 for value in self.violations.values())

    def to_data(self) -> dict[str, Any]:
        """Returns plain data, as a storage keeps it."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Outcome:
        """Returns the outcome that `to_data` was given."""
        return cls(**{**data, "warnings": tuple(data["warnings"])})


@dataclass(frozen=True, slots=True)
class Judge:
    """What is asked of every configuration.

    Attributes:
        measures: what is made small or large.
        required: constraints that must hold.
        prices: of GPUs, where cost is asked for.
    """

    measures: tuple[Measure, ...]
    required: tuple[str, ...] = CONSTRAINTS
    prices: Prices = field(default_factory=Prices)

    def of_capacity(self, scenario: Scenario, result: CapacityResult) -> Outcome:
        """Judges a capacity search: everything but the answer itself is measured at the load that is the answer."""
        point = answer_point(result)
        outcome = self._judged(scenario, point, result.value)
        diagnosis = result.diagnosis
        return Outcome(
            **{
                **asdict(outcome),
                "low": rounded(result.low),
                "high": rounded(result.high),
                "ceiling_reached": result.ceiling_reached,
                "binding_objective": result.binding_objective,
                "binding_resource": diagnosis.resource if diagnosis else None,
                "num_runs": result.num_runs,
            }
        )

    def of_point(self, scenario: Scenario, point: Point) -> Outcome:
        """Judges one load."""
        return self._judged(scenario, point, None)

    def _judged(self, scenario: Scenario, point: Point, answer: float | None) -> Outcome:
        measured = {each.name: self._value(each, scenario, point, answer) for each in self.measures}
        diagnosis = diagnose(point)
        preemptions = point.mean(lambda run: float(run.server.num_preemptions)) or 0.0
        return Outcome(
            measures={name: rounded(value) for name, value in measured.items()},
            violations=self._violations(point, preemptions, list(measured.values())),
            load=rounded(point.load),
            binding_objective=point.binding,
            binding_resource=diagnosis.resource if diagnosis else None,
            preemptions=preemptions,
            num_runs=len(point.runs),
            calibrated=all(run.calibrated for run in point.runs),
            warnings=tuple(said_once(text for run in point.runs for text in run.warnings)),
        )

    def _value(self, measure: Measure, scenario: Scenario, point: Point, answer: float | None) -> float | None:
        if measure.is_load:
            return answer
        if measure.name == "gpus":
            return scenario.server.num_gpus
        if measure.name == "cost":
            return self.prices.per_hour(scenario.server.gpu, scenario.server.num_gpus)
        return measure.of_point(point)

    def _violations(self, point: Point, preemptions: float, values: Sequence[float | None]) -> dict[str, float]:
        """Returns a number above 0 for each constraint that is broken, larger where more is missing."""
        found = {}
        if OBJECTIVES in self.required:
            excess = max(min(point.excess, _MOST_EXCESS) - 1, 0.0)
            found[OBJECTIVES] = 0.0 if point.holds else excess + point.overloaded
        if PREEMPTIONS in self.required:
            found[PREEMPTIONS] = preemptions
        return found | {NO_DATA: float(any(value is None for value in values))}
