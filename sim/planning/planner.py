"""The plan: for each candidate, what one replica supports, then the fewest replicas that hold.

1. **One replica**: the capacity search, on few seeds, up to the peak.
2. **A first number**: enough replicas for the peak, and one more than the load needs, so that one may be lost.
3. **Simulated**: that many behind the router at the peak, and one fewer at the load, on all seeds. More replicas until
   both hold, then fewer as long as both still do: several replicas behind a router support neither exactly as many
   times the load of one (they share what is cached, and even out bursts) nor much else.

The loss of a replica is looked at in the steady state: one fewer, at the load without the peak. What the moment of the
failure costs is another question, and `server.failures` asks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sim.capacity import Point, Simulate
from sim.capacity.loads import UNITS, LoadGrid, Unit
from sim.capacity.runs import Runs
from sim.capacity.search import search_capacity
from sim.errors import UserError
from sim.planning.candidates import Candidate
from sim.planning.kept import KeptSearch, Told
from sim.planning.result import Check, PlanRow
from sim.scenario.load import override
from sim.scenario.model import Scenario, Search
from sim.sweep.kept import KeptRuns

_QUICK = 2  # seeds of the search on one replica, and of a first look at several
_GROSS = 1.5  # a measure this many times its bound on few seeds is no chance
_GROWTH = 1.15  # from one number of replicas to the next that is tried
_NEAR = 0.9  # of a bound: nearer than this, an error of the step times decides
_VARY = {"users": "users", "open_loop": "request_rate", "closed_loop": "max_concurrency"}


class PlanInterruptedError(Exception):
    """The user stopped the plan; `plan` holds what was finished by then."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("interrupted")
        self.plan = plan


@dataclass(frozen=True, slots=True)
class Request:
    """What is planned for.

    Attributes:
        load: users (or requests/s, or concurrency) in the usual hours.
        peak_factor: how many times as much the peak is.
        survive_loss: whether one replica fewer must hold at the load.
        max_replicas: most replicas of a plan.
        prices: GPU -> price of one for an hour, by the names of the built-in table.
        in_whole_numbers: whether loads are counted (users, concurrency) rather than measured (requests/s).
    """

    load: float
    peak_factor: float = 1.3
    survive_loss: bool = True
    max_replicas: int = 64
    prices: dict[str, float] = field(default_factory=dict)
    in_whole_numbers: bool = True

    @property
    def peak(self) -> float:
        """The load at the peak."""
        peak = self.load * self.peak_factor
        return math.ceil(peak - 1e-9) if self.in_whole_numbers else float(f"{peak:.4g}")


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer.

    Attributes:
        request: what was planned for.
        unit: what loads are counted in.
        rows: one a candidate; those that hold come first, the cheapest foremost.
        seeds: of the checks.
        interrupted: whether candidates are missing.
    """

    request: Request
    unit: Unit
    rows: tuple[PlanRow, ...]
    seeds: tuple[int, ...]
    interrupted: bool = False

    @property
    def holds(self) -> bool:
        """Whether some deployment holds."""
        return any(row.replicas is not None for row in self.rows)


def make_plan(
    scenario: Scenario,
    tried: Sequence[Candidate],
    request: Request,
    simulate: Simulate,
    *,
    command: Callable[[Candidate, int, float], str],
    jobs: int = 1,
    kept: KeptRuns | None = None,
    tell: Told | None = None,
) -> Plan:
    """Plans a load.

    Args:
        scenario: workload, objectives and how long and often is simulated.
        tried: the candidates.
        request: the load, its peak, and what a GPU costs.
        simulate: makes one run.
        command: (candidate, replicas, load) -> the command that runs it alone.
        jobs: worker processes at most.
        kept: keeps each run; what it holds already is not simulated again.
        tell: is told how far the plan is.

    Raises:
        UserError: no objectives, or a load that the workload does not have.
        PlanInterruptedError: Ctrl-C.
    """
    vary = _vary(scenario)
    rows: list[PlanRow] = []
    seeds = tuple(range(scenario.run.seed, scenario.run.seed + scenario.run.seeds))

    def so_far(interrupted: bool) -> Plan:
        return Plan(request, UNITS[vary], tuple(sorted(rows, key=_order)), seeds, interrupted)

    try:
        for candidate in tried:
            sizing = _Sizing(candidate, request, vary, simulate, jobs, kept, tell)
            rows.append(_priced(sizing.row(), request, command))
    except KeyboardInterrupt:
        raise PlanInterruptedError(so_far(interrupted=True)) from None
    return so_far(interrupted=False)


def _vary(scenario: Scenario) -> str:
    if not scenario.objectives:
        raise UserError("objectives: missing key; a plan needs at least one, for example 'ttft.p95 <= 2s'")
    if scenario.workload.kind not in _VARY:
        known = ", ".join(_VARY)
        raise UserError(f"workload.kind: a plan needs a load that can be scaled; got {scenario.workload.kind}; {known}")
    return _VARY[scenario.workload.kind]


def _order(row: PlanRow) -> tuple[bool, float, float, str]:
    """Those that hold first; then by price, those without one last; then by GPUs."""
    price = math.inf if row.price_per_hour is None else row.price_per_hour
    return row.replicas is None, price, row.num_gpus or math.inf, row.candidate.gpu


def _priced(row: PlanRow, request: Request, command: Callable[[Candidate, int, float], str]) -> PlanRow:
    if row.replicas is None or row.peak is None:
        return row
    price = request.prices.get(row.candidate.gpu)
    return replace(
        row,
        price_per_hour=None if price is None else price * (row.num_gpus or 0),
        command=command(row.candidate, row.replicas, row.peak.load),
    )


@dataclass
class _Sizing:
    """The search for one candidate's number of replicas; `row` reads from top to bottom."""

    candidate: Candidate
    request: Request
    vary: str
    simulate: Simulate
    jobs: int
    kept: KeptRuns | None
    tell: Told | None
    _runs: dict[int, Runs] = field(default_factory=dict)
    _checks: dict[tuple[int, float], Check] = field(default_factory=dict)

    def row(self) -> PlanRow:
        """Returns what the candidate needs."""
        if self.candidate.scenario is None:
            return PlanRow(self.candidate, problem=f"does not start: {self.candidate.problem}")
        one, at_least, binding = self._one_replica()
        row = PlanRow(self.candidate, one_replica=one, at_least=at_least)
        if not one:
            return replace(row, problem=f"supports not even the smallest load: {binding} breaks")
        first = self._first_number(one)
        if first > self.request.max_replicas:
            return replace(row, problem=f"needs about {first} replicas, more than {self.request.max_replicas}")
        replicas = self._fewest(first)
        if replicas is None:
            most = self._most(first)
            broken = self._check(most, self.request.peak)
            if broken.holds:
                broken = self._check(most - 1, self.request.load)
            return replace(row, broken=broken, problem=f"does not hold with {most} replicas")
        peak = self._check(replicas, self.request.peak)
        loss = self._check(replicas - 1, self.request.load) if self.request.survive_loss else None
        calibrated, reasons = self._trust(peak, loss)
        return replace(row, replicas=replicas, peak=peak, loss=loss, calibrated=calibrated, spot_check=reasons)

    def _one_replica(self) -> tuple[float, bool, str | None]:
        """Searches what one replica supports: (load, whether it may be more, what breaks beyond it)."""
        peak = self.request.peak
        search = {"vary": self.vary, "from": _start(peak, self.vary), "to": peak}
        runs = self._new_runs(override(self.candidate.with_replicas(1), {"search": search}), _QUICK)
        result = search_capacity(runs, LoadGrid.of(Search.model_validate(search)))
        return result.value or 0.0, result.ceiling_reached, result.binding_objective

    def _first_number(self, one: float) -> int:
        """Returns how many replicas should be enough, if several were just several times one."""
        for_peak = math.ceil(self.request.peak / one - 1e-9)
        for_loss = math.ceil(self.request.load / one - 1e-9) + 1 if self.request.survive_loss else 1
        return max(for_peak, for_loss)

    def _most(self, first: int) -> int:
        return min(self.request.max_replicas, 2 * first + 2)

    def _fewest(self, first: int) -> int | None:
        """Returns the fewest replicas that hold: searched upwards from the first number, then downwards."""
        broken, number, most = 1 if self.request.survive_loss else 0, first, self._most(first)
        while not self._holds(number):
            if number >= most:
                return None
            broken, number = number, min(most, max(number + 1, round(_GROWTH * number)))
        step_down = number == first  # one by one: the first number is seldom far too large
        while number - broken > 1:
            middle = number - 1 if step_down else (broken + number) // 2
            if self._holds(middle):
                number = middle
            elif step_down:
                break
            else:
                broken = middle
        return number

    def _holds(self, replicas: int) -> bool:
        if not self._check(replicas, self.request.peak).holds:
            return False
        return not self.request.survive_loss or self._check(replicas - 1, self.request.load).holds

    def _check(self, replicas: int, load: float) -> Check:
        """Simulates so many replicas at a load: on all seeds, unless few already show it broken beyond doubt."""
        key = (replicas, load)
        if key not in self._checks:
            if replicas not in self._runs:
                # As the command of the row simulates it, so that it says the same.
                changes = {"search": None, _load_key(self.vary): load}
                self._runs[replicas] = self._new_runs(override(self.candidate.with_replicas(replicas), changes), None)
            runs = self._runs[replicas]
            point = runs.point(load, _QUICK)
            if point.holds or point.excess < _GROSS:
                point = runs.point(load)
            self._checks[key] = _judged(replicas, load, point)
        return self._checks[key]

    def _new_runs(self, scenario: Scenario, num_seeds: int | None) -> Runs:
        seeds = tuple(range(scenario.run.seed, scenario.run.seed + scenario.run.seeds))[:num_seeds]
        server = scenario.server
        about = f"{server.replicas} x {server.tensor_parallel_size} {server.gpu}"
        return KeptSearch(scenario, self.simulate, seeds, self.jobs, kept=self.kept, tell=self.tell, about=about)

    def _trust(self, peak: Check, loss: Check | None) -> tuple[bool, tuple[str, ...]]:
        """Returns whether the step times are calibrated, and why a measurement on the real server is due."""
        scenario = self.candidate.scenario
        assert scenario is not None, "a candidate that holds has a scenario"
        metrics = [run for runs in self._runs.values() for point in runs.known() for run in point.runs]
        calibrated = all(run.calibrated for run in metrics)
        warnings = [text for check in (peak, loss) if check is not None for text in check.warnings]
        reasons = [] if calibrated else ["step times are uncalibrated: an estimate from data sheets, or a prior"]
        if any("extrapolated" in text for text in warnings):
            reasons.append("step times are extrapolated beyond the profile's data")
        if any("was measured with" in text for text in warnings):
            reasons.append("the profile was measured on another server")
        for check, when in ((peak, "at the peak"), (loss, "with one replica lost")):
            if check is not None and check.excess > _NEAR:
                share = f"{100 * check.excess:.0f} % of its bound"
                reasons.append(f"{check.nearest.name} is at {share} {when}: an error of the step times would decide")
        return calibrated, tuple(reasons)


def _start(peak: float, vary: str) -> float:
    """Returns where the search on one replica begins: a sixteenth of the peak is a share of many a server."""
    return max(1, round(peak / 16)) if vary != "request_rate" else float(f"{peak / 16:.3g}")


def _load_key(vary: str) -> str:
    return {"users": "workload.users", "request_rate": "workload.request_rate"}.get(vary, "workload.max_concurrency")


def _judged(replicas: int, load: float, point: Point) -> Check:
    worst = max(point.results, key=lambda result: result.excess)
    warnings = dict.fromkeys(warning for run in point.runs for warning in run.warnings)
    return Check(
        replicas, load, point.holds, worst.objective, worst.value, point.excess, point.overloaded, tuple(warnings)
    )  # fmt: skip
