"""The result of a flag search as plain data: what `headcount search --json` prints, and what text and page show.

Values are in the unit that `objectives` states (seconds, shares, per second, money per hour), six significant digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reports.document import Document
from sim.capacity.loads import unit_of
from sim.results.said_once import said_once
from sim.results.storage import versions
from sim.scenario.model import Scenario, scenario_hash
from sim.search import Judge, Space, Trial, configure, distinct, front_of, serve_command
from sim.search.front import losses

FORMAT = 1
"""Of the document; rises when a reader of older ones would misread it."""


def search_document(
    base: Scenario,
    space: Space,
    judge: Judge,
    trials: list[Trial],
    *,
    study: str,
    storage: str,
    interrupted: bool,
    run_command: Callable[[dict[str, Any]], str],
) -> Document:
    """Returns everything that is known, the front first, in the order of the first measure.

    Args:
        base: the scenario.
        space: what was varied.
        judge: what was made small or large, and what was required.
        trials: all of them.
        study: name of the study in the storage.
        storage: where the trials are, without a password.
        interrupted: whether the search was stopped before its end.
        run_command: parameters -> the command line that makes the trial again.
    """
    made, front = distinct(trials), front_of(trials, judge)
    rows = {trial.number: _trial(base, judge, trial, run_command) for trial in made}
    return {
        "format": FORMAT,
        "scenario": base.name,
        "scenario_hash": scenario_hash(base),
        "study": study,
        "storage": storage,
        "interrupted": interrupted,
        "objectives": [_objective(judge, number) for number in range(len(judge.measures))],
        "required": ["starts", *judge.required],
        "vary": {axis.key: list(axis.values) for axis in space.axes},
        "unit": unit_of(base),
        "searches_capacity": base.search is not None,
        "seeds": list(range(base.run.seed, base.run.seed + base.run.seeds)),
        "num_configurations": space.size,
        "num_simulated": len(made),
        "num_runs": sum(trial.outcome.num_runs for trial in made if trial.outcome is not None),
        "num_refused": sum(trial.state == "refused" for trial in trials),
        "num_failed": sum(trial.state == "failed" for trial in trials),
        "calibrated": bool(made) and all(rows[trial.number]["calibrated"] for trial in front or made),
        "front": _without_equals(front, judge, rows),
        "trials": [rows[trial.number] for trial in made],
        "failures": [_failure(trial) for trial in trials if trial.state in ("refused", "failed")],
        "warnings": _warnings(front),
        "versions": versions(),
    }


def _objective(judge: Judge, number: int) -> Document:
    measure = judge.measures[number]
    unit = f"{judge.prices.currency} per hour" if measure.name == "cost" else measure.unit
    return {"metric": measure.name, "direction": measure.direction, "unit": unit}


def _trial(base: Scenario, judge: Judge, trial: Trial, run_command: Callable[[dict[str, Any]], str]) -> Document:
    outcome = trial.outcome
    assert outcome is not None, f"trial {trial.number} is done without an outcome"
    scenario = configure(base, trial.parameters).scenario
    assert scenario is not None, f"trial {trial.number} was simulated although its server does not start"
    return {
        "trial": trial.number,
        "parameters": trial.parameters,
        "measures": dict(outcome.measures),
        "shown": {each.name: each.shown(outcome.measures[each.name]) for each in judge.measures},
        "load": outcome.load,
        "low": outcome.low,
        "high": outcome.high,
        "ceiling_reached": outcome.ceiling_reached,
        "feasible": outcome.feasible,
        "broken": [name for name, value in outcome.violations.items() if value > 0],
        "preemptions": outcome.preemptions,
        "binding_objective": outcome.binding_objective,
        "binding_resource": outcome.binding_resource,
        "calibrated": outcome.calibrated,
        "warnings": list(outcome.warnings),
        "serve": serve_command(scenario),
        "run": run_command(trial.parameters),
        "equal": [],
    }


def _without_equals(front: list[Trial], judge: Judge, rows: dict[int, Document]) -> list[Document]:
    """Returns the front with one trial for each set of numbers; the others stand in `equal` of it."""
    first: dict[tuple[float, ...], Document] = {}
    for trial in front:
        assert trial.outcome is not None, f"trial {trial.number} is done without an outcome"
        own = losses(judge.measures, trial.outcome)
        if own in first:
            first[own]["equal"].append(trial.number)
        else:
            first[own] = dict(rows[trial.number], equal=[])
    return [first[own] for own in sorted(first)]


def _failure(trial: Trial) -> Document:
    return {"trial": trial.number, "parameters": trial.parameters, "state": trial.state, "cause": trial.cause}


def _warnings(front: list[Trial]) -> list[str]:
    return said_once(text for trial in front if trial.outcome is not None for text in trial.outcome.warnings)
