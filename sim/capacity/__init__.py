"""How much a server supports: the search for the largest load at which every objective holds.

Start reading at `search.py`. `point.py` judges one load, `interval.py` says how far the answer may be trusted,
`diagnosis.py` names what stands in the way.
"""

from __future__ import annotations

from sim.capacity.diagnosis import Diagnosis
from sim.capacity.loads import LoadGrid, Unit, own_load, unit_of
from sim.capacity.point import STEADY_STATE, Point
from sim.capacity.result import CapacityResult
from sim.capacity.runs import Load, Progress, Runs, Simulate, Store
from sim.capacity.search import search_capacity, single_load
from sim.errors import UserError
from sim.scenario.model import Scenario

__all__ = [
    "STEADY_STATE",
    "CapacityResult",
    "Diagnosis",
    "Load",
    "LoadGrid",
    "NoDataError",
    "Point",
    "Progress",
    "SearchInterruptedError",
    "Simulate",
    "Store",
    "Unit",
    "find_capacity",
    "unit_of",
]


class NoDataError(UserError):
    """An objective that had nothing to judge at any load; `index` is its place in the scenario's list."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(f"objectives.{index}: {message}")
        self.index = index
        self.message = message


class SearchInterruptedError(Exception):
    """The user stopped the search; `result` holds the loads that had been judged by then, and no answer."""

    def __init__(self, result: CapacityResult) -> None:
        super().__init__(f"interrupted after {result.num_runs} runs")
        self.result = result


def find_capacity(
    scenario: Scenario,
    simulate: Simulate,
    *,
    jobs: int = 1,
    store: Store | None = None,
    progress: Progress | None = None,
    drawn: Simulate | None = None,
) -> CapacityResult:
    """Finds the largest load that the scenario's server supports, or judges its one load when nothing is varied.

    Args:
        scenario: server, workload, objectives and what is varied.
        simulate: makes one run; picklable when `jobs` is above 1.
        jobs: worker processes at most; the result does not depend on it.
        store: keeps each run's records.
        progress: is told of each run.
        drawn: makes a run with step times drawn for its seed (see `sim.draws`): then the interval covers the fit.

    Raises:
        NoDataError: an objective that had nothing to judge at any load.
        SearchInterruptedError: Ctrl-C.
    """
    seeds = tuple(range(scenario.run.seed, scenario.run.seed + scenario.run.seeds))
    runs = Runs(scenario, simulate, seeds, jobs, store, progress)
    try:
        if scenario.search is None:
            result = single_load(runs, own_load(scenario))
        else:
            uncertain = None if drawn is None else Runs(scenario, drawn, seeds, jobs, None, _later(progress, runs))
            result = search_capacity(runs, LoadGrid.of(scenario.search), uncertain)
    except KeyboardInterrupt:
        raise SearchInterruptedError(_so_far(runs)) from None
    _check_data(result)
    return result


def _later(progress: Progress | None, before: Runs) -> Progress | None:
    """Counts on from the runs made before."""
    if progress is None:
        return None
    return lambda number, load, seed: progress(before.num_made + number, load, seed)


def _check_data(result: CapacityResult) -> None:
    """Refuses to answer when an objective had nothing to judge at any load."""
    for index, judged in enumerate(zip(*(point.results for point in result.points), strict=True)):
        if all(each.met is None for each in judged):
            cure = "a longer run.duration, a shorter run.warm_up, or another objective"
            raise NoDataError(index, f"{judged[-1].objective.text}: {judged[-1].note}; {cure}")


def _so_far(runs: Runs) -> CapacityResult:
    return CapacityResult(
        unit=unit_of(runs.scenario),
        value=None,
        low=None,
        high=None,
        ceiling_reached=False,
        next_load=None,
        resolution=None,
        binding_objective=None,
        diagnosis=None,
        points=tuple(runs.known()),
        seeds=runs.seeds,
        num_runs=runs.num_made,
        notes=("interrupted: the search was stopped before it had an answer",),
    )
