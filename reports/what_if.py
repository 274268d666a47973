"""What would help: each change simulated on its own, and the same load with fewer and more KV blocks (T8, F6).

Nothing here is a rule of thumb: a change's effect is the difference between two searches on the same requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reports.document import Document
from reports.source import Source
from reports.what_if_changes import MOST_CHANGES, WhatIfChange, changes_for
from sim.capacity import CapacityResult, NoDataError, Point, Simulate, find_capacity
from sim.capacity.runs import Runs
from sim.deployment import AnyDeployment, Deployment, plan, plan_server
from sim.errors import UserError
from sim.results.rounding import rounded
from sim.scenario.load import override
from sim.scenario.model import Scenario

FORMAT = 1

BLOCK_FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2)
"""KV blocks, as multiples of what the server has."""

_MOST_SEEDS = 3  # of a change's search: an effect worth having shows in three, at half the cost of six
_RUNS_PER_CHANGE = 20  # what a search with so many seeds takes from a known answer, about
_RESOLUTION = 0.02  # of the answer: finer than the interval in any case
_SENSITIVITY_SEEDS = 2

Progress = Callable[[str], None]


def estimate_steps(source: Source) -> int | None:
    """Returns about how many engine steps the simulations would take; None when no records say."""
    detail = source.detail(source.shown_load)
    if detail is None or source.document["binding_resource"] is None:
        return None
    runs = MOST_CHANGES * (_RUNS_PER_CHANGE if source.document["search"] else len(source.document["seeds"]))
    if source.document["server"]["kind"] == "vllm":
        runs += len(BLOCK_FACTORS) * _SENSITIVITY_SEEDS
    return len(detail.run.steps.end_ns) * runs


def simulate_what_if(
    source: Source, simulate: Simulate, *, jobs: int = 1, progress: Progress | None = None
) -> Document:
    """Simulates the changes that could help, and the sensitivity to the size of the KV cache.

    Args:
        source: the run or search, with its scenario.
        simulate: makes one run; picklable when `jobs` is above 1.
        jobs: worker processes at most; the result does not depend on it.
        progress: is told what is simulated next.

    Returns:
        plain data, ready for JSON: it is stored beside the result, so that a report is made of it again and again.
    """
    scenario, document = source.scenario, source.document
    assert scenario is not None, "a what-if needs the scenario"
    tell = progress or (lambda _: None)
    deployment = plan_server(scenario)
    world = _World(source, scenario, deployment, simulate, jobs)
    changes = []
    for change in changes_for(scenario, deployment, document["binding_resource"]):
        tell(", ".join(f"{key}={value}" for key, value in change.changes.items()))
        changes.append(_simulate_change(world, change))
    sensitivity: list[Document] = []
    if scenario.server.kind == "vllm" and isinstance(deployment, Deployment):
        tell("num_gpu_blocks")
        sensitivity = _sensitivity(world, deployment)
    return {
        "format": FORMAT,
        "scenario_hash": source.document["scenario_hash"],
        "load": source.shown_load,
        "baseline": dict(source.document["supported_users"]),
        "seeds": _num_seeds(scenario),
        "changes": changes,
        "sensitivity": sensitivity,
    }


def _num_seeds(scenario: Scenario) -> int:
    return min(scenario.run.seeds, _MOST_SEEDS) if scenario.search is not None else scenario.run.seeds


@dataclass(frozen=True, slots=True)
class _World:
    """What every simulation needs."""

    source: Source
    scenario: Scenario
    deployment: AnyDeployment
    simulate: Simulate
    jobs: int


def _simulate_change(world: _World, change: WhatIfChange) -> Document:
    known: Document = {
        "key": change.key, "changes": change.changes, "before": change.before, "after": change.after,
        "status": "simulated", "note": "", "value": None, "low": None, "high": None, "ceiling_reached": False,
        "met": None, "binding_objective": None, "binding_resource": None, "objectives": [],
    }  # fmt: skip
    try:
        changed = override(world.scenario, change.changes)
        unmeasured = [text for text in plan_server(changed).warnings if text not in world.deployment.warnings]
        if unmeasured and world.deployment.profile is not None:
            return known | {"status": "unmeasured", "note": unmeasured[0]}
        result = find_capacity(_started_near(changed, world.source), world.simulate, jobs=world.jobs)
    except NoDataError as error:
        return known | {"status": "no_data", "note": str(error)}
    except UserError as error:
        return known | {"status": "refused", "note": str(error)}
    return known | _outcome(result)


def _outcome(result: CapacityResult) -> Document:
    point = result.points[-1] if result.value is None else next(
        (point for point in result.points if point.load == result.value), None
    )  # fmt: skip
    judged = [
        {"objective": each.objective.text, "value": rounded(each.value), "met": each.met}
        for each in (point.results if point is not None else ())
    ]
    return {
        "value": rounded(result.value), "low": rounded(result.low), "high": rounded(result.high),
        "ceiling_reached": result.ceiling_reached, "met": result.supported,
        "binding_objective": result.binding_objective,
        "binding_resource": result.diagnosis.resource if result.diagnosis else None,
        "objectives": judged,
    }  # fmt: skip


def _started_near(scenario: Scenario, source: Source) -> Scenario:
    """Returns the scenario with its search begun at the known answer: the new one is not far off."""
    search = source.document["search"]
    if scenario.search is None or search is None:
        return scenario
    known = source.document["supported_users"]["value"] or search["next_load"] or search["from"]
    data = scenario.search.model_dump(by_alias=True)
    data |= {"from": known, "to": max(search["to"], 8 * known)}
    if scenario.search.vary == "request_rate":
        data["resolution"] = max(scenario.search.resolution or 0.0, _RESOLUTION * known)
    else:
        data["resolution"] = max(scenario.search.resolution or 1.0, round(_RESOLUTION * known), 1.0)
    return override(scenario, {"search": data, "run.seeds": _num_seeds(scenario)})


def _sensitivity(world: _World, deployment: Deployment) -> list[Document]:
    """Simulates the load that is the answer with fewer and more KV blocks; F6."""
    seeds = tuple(world.source.document["seeds"][:_SENSITIVITY_SEEDS])
    found = []
    for factor in BLOCK_FACTORS:
        blocks = round(factor * deployment.memory.num_gpu_blocks)
        row: Document = {"factor": factor, "num_gpu_blocks": blocks}
        try:
            changed = override(world.scenario, {"server.flags.num_gpu_blocks_override": blocks})
            plan(changed)
        except UserError:  # too few blocks for one request of max_model_len: the server would not start
            found.append(row | {"ttft_p95_ms": None, "itl_p95_ms": None, "preemptions": None, "met": None})
            continue
        point = Runs(changed, world.simulate, seeds, world.jobs).point(world.source.shown_load)
        measured = {f"{kind}_p95_ms": rounded(_p95(point, kind)) for kind in ("ttft", "itl")}
        preemptions = point.mean(lambda run: float(run.server.num_preemptions))
        found.append(row | measured | {"preemptions": rounded(preemptions), "met": point.holds})
    return found


def _p95(point: Point, kind: str) -> float | None:
    return point.mean(lambda run: run.total.latency[kind].percentiles[95.0])
