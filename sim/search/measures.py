"""What a search makes small or large: latencies, throughput, supported users, cost; named as objectives name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sim.capacity import CapacityResult, Point
from sim.capacity.loads import UNITS
from sim.capacity.point import mean
from sim.errors import UserError
from sim.hardware import find_gpu
from sim.results.latency import PERCENTILES
from sim.results.metrics import RunMetrics
from sim.results.objectives import group_of, measure
from sim.scenario.explain import suggestion
from sim.scenario.model import Objective, Scenario
from sim.scenario.objectives import LATENCIES, METRICS, parse_objective

Direction = Literal["minimize", "maximize"]

_ALIASES = {"throughput": "output_throughput"}
_RISING = ("goodput", "output_throughput", "request_throughput")
_SHARES = ("goodput", "errors")
_OF_THE_SERVER = ("cost", "gpus")


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity.

    Attributes:
        name: as it was asked for.
        direction: which way is better.
        objective: what to measure in a run (its bound says nothing); None for what no run tells.
    """

    name: str
    direction: Direction
    objective: Objective | None = None

    @property
    def is_load(self) -> bool:
        """Whether it is the answer of a capacity search."""
        return self.name in UNITS

    @property
    def unit(self) -> str:
        """The unit of its values; empty for counts and shares."""
        if self.objective is None:
            return "per hour" if self.name == "cost" else ""
        if self.objective.metric in LATENCIES or self.objective.metric == "duration":
            return "s"
        return {"output_throughput": "tok/s", "request_throughput": "req/s"}.get(self.objective.metric, "")

    def of_run(self, run: RunMetrics) -> float | None:
        """Returns the value in one run; None without data, and for what no run tells."""
        if self.objective is None:
            return None
        if self.objective.metric == "goodput":
            group = group_of(self.objective, run)
            return group.goodput[run.bounds] if group is not None else None
        return measure(self.objective, run)

    def of_point(self, point: Point) -> float | None:
        """Returns the mean over the seeds of a load."""
        return mean(self.of_run(run) for run in point.runs)

    def shown(self, value: float | None) -> str:
        """Returns a value with its unit."""
        if value is None:
            return "no data"
        if self.objective is not None:
            return self.objective.show(value, digits=4)
        return f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Prices:
    """What a GPU costs an hour.

    Attributes:
        any_gpu: price of a GPU that has none of its own; None: it must have one.
        of_gpu: name in the built-in table -> price.
        currency: of all of them.
    """

    any_gpu: float | None = None
    of_gpu: Mapping[str, float] | None = None
    currency: str = "USD"

    def per_hour(self, gpu: str, num_gpus: int) -> float | None:
        """Returns what so many GPUs cost an hour; None where the price is not known.

        Raises:
            UserError: there is no such GPU.
        """
        price = (self.of_gpu or {}).get(find_gpu(gpu).name, self.any_gpu)
        return None if price is None else price * num_gpus


def parse_measures(minimize: str, maximize: str, scenario: Scenario) -> tuple[Measure, ...]:
    """Reads the texts of `--minimize` and `--maximize`: names separated by commas.

    Raises:
        UserError: none, one that is not known, one twice, or one on its wrong side.
    """
    found: list[Measure] = []
    for option, direction, text in (("--minimize", "minimize", minimize), ("--maximize", "maximize", maximize)):
        for name in (each.strip() for each in text.split(",") if each.strip()):
            read = parse_measure(name, scenario, option)
            if read.direction != direction:
                side = "better" if read.direction == "maximize" else "worse"
                raise UserError(f"{option} {name}: more of it is {side}; put it behind --{read.direction}")
            if any(_alike(read, each) for each in found):
                raise UserError(f"{option} {name}: given twice")
            found.append(read)
    if not found:
        raise UserError("--minimize, --maximize: missing; for example --minimize ttft.p95,cost --maximize users")
    return tuple(found)


def parse_measure(name: str, scenario: Scenario, option: str = "--metrics") -> Measure:
    """Reads one name: `ttft.p95`, `itl.p99[chat]`, `throughput`, `goodput`, `errors`, `users`, `cost`, `gpus`.

    Raises:
        UserError: it is not known, or the scenario has nothing of the kind.
    """
    if name in UNITS:
        _check_load(name, scenario, option)
        return Measure(name, "maximize")
    if name in _OF_THE_SERVER:
        return Measure(name, "minimize")
    metric = name.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0].strip()
    if metric not in METRICS and metric not in _ALIASES:
        known = [*METRICS, *_ALIASES, *UNITS, *_OF_THE_SERVER]
        raise UserError(f"{option} {name}: unknown metric; {suggestion(metric, known, noun='metrics')}")
    objective = _objective(_ALIASES.get(metric, metric) + name.removeprefix(metric), f"{option} {name}")
    classes = {each.name for each in getattr(scenario.workload, "classes", ())}
    if objective.class_name and classes and objective.class_name not in classes:
        raise UserError(f"{option} {name}: {suggestion(objective.class_name, classes, noun='classes')}")
    kept = {*PERCENTILES, *(each.percentile for each in scenario.objectives)}
    if objective.percentile is not None and objective.percentile not in kept:
        listed = ", ".join(f"p{each:g}" for each in PERCENTILES)
        raise UserError(f"{option} {name}: a run states {listed}, and those that the scenario's objectives name")
    return Measure(name, "maximize" if objective.metric in _RISING else "minimize", objective)


def _objective(text: str, where: str) -> Objective:
    metric = text.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0]
    rising = ">= " if metric in _RISING else "<= "
    bound = "100%" if metric in _SHARES else "1s" if metric in (*LATENCIES, "duration") else "1"
    bounds = "(ttft <= 1s)" if metric == "goodput" else ""  # not used: `of_run` takes those of the scenario
    head, bracket, rest = text.partition("[")
    try:
        return Objective.model_validate(parse_objective(f"{head}{bounds}{bracket}{rest} {rising}{bound}"))
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _check_load(name: str, scenario: Scenario, option: str) -> None:
    if scenario.search is None:
        raise UserError(f"{option} {name}: the answer of a search, but one load is simulated; leave out one of the two")
    varied = scenario.search.vary
    if varied != name:
        raise UserError(f"{option} {name}: the scenario searches for {varied}; write {varied}")


def _alike(one: Measure, other: Measure) -> bool:
    return one.name == other.name or (one.objective is not None and one.objective == other.objective)


def answer_point(result: CapacityResult) -> Point:
    """Returns the load that a configuration is measured at: the answer, or the lowest one where none holds."""
    return next((point for point in result.points if point.load == result.value), result.points[0])
