"""The same question put to several kinds of server: the same users, the same objectives, one search each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sim.capacity.loads import own_load
from sim.capacity.point import Point
from sim.capacity.result import CapacityResult
from sim.capacity.runs import Load, Progress, Runs, Simulate
from sim.deployment import AnyDeployment, plan, plan_server
from sim.draws import drawn_simulate
from sim.errors import UserError
from sim.scenario.load import override
from sim.scenario.model import Scenario

KINDS = ("vllm", "ollama", "static")


@dataclass(frozen=True, slots=True)
class KindResult:
    """What one kind of server makes of the scenario.

    Attributes:
        kind: `vllm`, `ollama` or `static`.
        scenario: the scenario with that server.
        deployment: the server; None when it would not start.
        result: the search or the one load; None when the server would not start.
        problem: why it would not start, or why nothing could be judged.
        same_loads: the loads at which all kinds are put side by side.
    """

    kind: str
    scenario: Scenario
    deployment: AnyDeployment | None = None
    result: CapacityResult | None = None
    problem: str | None = None
    same_loads: tuple[Point, ...] = ()


def compare_kinds(
    scenario: Scenario,
    kinds: Sequence[str],
    simulate: Simulate,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> tuple[KindResult, ...]:
    """Searches what each kind of server supports, and puts all side by side at the smallest and the largest answer.

    Args:
        scenario: with whichever kind it has; settings of the others are in the sections of their names.
        kinds: which to compare, in the order of the result.
        simulate: makes one run; picklable when `jobs` is above 1.
        jobs: worker processes at most; the result does not depend on it.
        progress: is told of each run.
    """
    from sim.capacity import find_capacity  # noqa: PLC0415 - the package imports this module's neighbours

    found: list[KindResult] = []
    for kind in kinds:
        try:
            of_kind = _with_kind(scenario, kind)
            deployment = plan_server(of_kind)
        except UserError as error:
            found.append(KindResult(kind, scenario, problem=str(error)))
            continue
        try:
            drawn = None if of_kind.search is None else drawn_simulate(of_kind)
            result = find_capacity(of_kind, simulate, jobs=jobs, progress=progress, drawn=drawn)
        except UserError as error:
            found.append(KindResult(kind, of_kind, deployment, problem=str(error)))
            continue
        found.append(KindResult(kind, of_kind, deployment, result))
    loads = _same_loads(scenario, found)
    return tuple(_side_by_side(each, loads, simulate, jobs, progress) for each in found)


def _with_kind(scenario: Scenario, kind: str) -> Scenario:
    """Returns the scenario with another server, its requests unchanged.

    Where nothing else ends them, vLLM's context ends conversations: it is written down, so that it does so everywhere.
    """
    changes: dict[str, object] = {"server.kind": kind}
    if scenario.workload.kind == "users" and scenario.server.flags.max_model_len is None:
        with suppress(UserError):  # else there is no vLLM server to be like
            changes["server.flags.max_model_len"] = plan(scenario).flags.max_model_len
    return override(scenario, changes)


def _same_loads(scenario: Scenario, found: Sequence[KindResult]) -> tuple[Load, ...]:
    """Returns the smallest and the largest answer; without a search, the one load."""
    results = [each.result for each in found if each.result is not None]
    if not results:
        return ()
    if scenario.search is None:
        return (own_load(scenario),)
    answers = {result.value for result in results if result.value}
    return tuple(sorted({min(answers), max(answers)})) if answers else (scenario.search.from_,)


def _side_by_side(
    each: KindResult, loads: Sequence[Load], simulate: Simulate, jobs: int, progress: Progress | None
) -> KindResult:
    if each.result is None:
        return each
    known = {point.load: point for point in each.result.points if len(point.seeds) == len(each.result.seeds)}
    runs = Runs(each.scenario, simulate, each.result.seeds, jobs, None, progress)
    return replace(each, same_loads=tuple(known[load] if load in known else runs.point(load) for load in loads))
