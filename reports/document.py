"""The result of a run or a search as plain data: what `headcount run --json` prints, and what every report shows.

`sim/results/run.schema.json` describes it. Numbers have six significant digits, so that they do not pretend more; what
has no value is null, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from reports.fleet import fleet, fleet_settings
from reports.other_servers import limits, ollama_memory, ollama_server
from sim.capacity import CapacityResult, Point
from sim.capacity.point import mean
from sim.deployment import AnyDeployment
from sim.ollama_deployment import OllamaDeployment
from sim.results.latency import LATENCIES
from sim.results.metrics import GroupMetrics, RunMetrics
from sim.results.objectives import ObjectiveResult, evaluate
from sim.results.rounding import rounded
from sim.results.said_once import said_once
from sim.results.storage import versions
from sim.scenario.model import Scenario, scenario_hash

FORMAT = 1
"""Of the document; rises when a reader of older ones would misread it."""

Document = dict[str, Any]

_THROUGHPUT = {
    "offered_requests_per_s": "offered",
    "requests_per_s": "completed",
    "output_tokens_per_s": "output_tokens",
    "prompt_tokens_per_s": "prompt_tokens",
    "total_tokens_per_s": "total_tokens",
}


def build_document(
    scenario: Scenario, deployment: AnyDeployment, result: CapacityResult, step_split: Document | None = None
) -> Document:
    """Returns everything that is known, in the order of a reader's questions.

    Args:
        scenario: what was asked.
        deployment: the server.
        result: the answer.
        step_split: where the step time goes, when that was asked for (`reports.step_split`).
    """
    diagnosis = result.diagnosis
    return {
        "format": FORMAT,
        "scenario": scenario.name,
        "scenario_hash": scenario_hash(scenario),
        "supported_users": {
            **{name: rounded(getattr(result, name)) for name in ("value", "low", "high")},
            "covers": list(result.covers),
        },
        "unit": result.unit,
        "registered_people": _registered(scenario, result),
        "active_share": scenario.active_share,
        "objectives": [objective.text for objective in scenario.objectives],
        "objectives_met": result.supported if result.points else None,
        "binding_objective": result.binding_objective,
        "binding_resource": diagnosis.resource if diagnosis else None,
        "diagnosis": {
            "resource": diagnosis.resource,
            "evidence": diagnosis.evidence,
            "cure": diagnosis.cure,
            "notes": list(diagnosis.notes),
        } if diagnosis else None,
        "calibrated": _is_calibrated(deployment),
        "step_times": _step_times(deployment),
        "search": _search(scenario, result),
        "points": [point_document(point) for point in result.points],
        **({"step_split": step_split} if step_split is not None else {}),
        "server": _server(scenario, deployment),
        "memory": _memory(deployment),
        "warnings": _warnings(deployment, result),
        "notes": list(result.notes),
        "versions": versions(),
        "seeds": list(result.seeds),
    }  # fmt: skip


def _is_calibrated(deployment: AnyDeployment) -> bool:
    if isinstance(deployment, OllamaDeployment):
        return deployment.calibrated
    return deployment.profile is not None and deployment.profile.calibrated is True


def _registered(scenario: Scenario, result: CapacityResult) -> int | None:
    """Returns how many registered people the supported users stand for."""
    if scenario.active_share is None or result.unit != "users" or result.value is None:
        return None
    return math.floor(result.value / scenario.active_share + 1e-9)


def _search(scenario: Scenario, result: CapacityResult) -> Document | None:
    if scenario.search is None:
        return None
    return {
        "vary": scenario.search.vary,
        "from": rounded(scenario.search.from_),
        "to": rounded(scenario.search.to),
        "resolution": rounded(result.resolution),
        "next_load": rounded(result.next_load),
        "ceiling_reached": result.ceiling_reached,
        "num_runs": result.num_runs,
    }


def _step_times(deployment: AnyDeployment) -> Document:
    """Says where the durations come from, and how far they were off where they could be compared."""
    profile = deployment.profile
    if profile is None:
        return {"source": "analytical", "description": None, "errors": []}
    return {
        "source": profile.name,
        "description": profile.description,
        "errors": [
            {
                "run": table.run,
                "band": table.band,
                "held_out": table.held_out,
                "metric": row.metric,
                "statistic": row.statistic,
                "measured": rounded(row.measured),
                "predicted": rounded(row.predicted),
                "error_percent": rounded(row.error_percent),
            }
            for table in profile.errors
            for row in table.rows
        ],
    }


def point_document(point: Point) -> Document:
    """Returns one load: means over its seeds, and how each objective was judged."""
    return {
        "load": rounded(point.load),
        "seeds": list(point.seeds),
        "window": point.runs[0].window.sentence(),
        **_latencies(point, lambda run: run.total),
        "throughput": {key: _mean(point, _rate(name)) for key, name in _THROUGHPUT.items()},
        "running": _level(point, "running"),
        "waiting": _level(point, "waiting"),
        "kv": _level(point, "kv"),
        "busy": _mean(point, lambda run: run.server.busy),
        "preemptions": _mean(point, lambda run: float(run.server.num_preemptions)),
        "preemptions_per_request": _mean(point, _preemptions_per_request),
        "prefix_hit_rate": _mean(point, lambda run: run.server.prefix_hit_rate),
        "goodput": _mean(point, lambda run: run.total.goodput[run.bounds]),
        "errors": _errors(point, lambda run: run.total),
        "duration_s": _mean(point, lambda run: run.duration_s),
        "num_requests": _mean(point, lambda run: float(run.total.num_requests)),
        "classes": {name: _class(point, name) for name in point.runs[0].classes},
        "overloaded": point.overloaded,
        "objectives": [_objective(result, point) for result in point.results],
        "objectives_met": point.holds,
        **limits(point),
        **fleet(point),
    }


def _class(point: Point, name: str) -> Document:
    def group(run: RunMetrics) -> GroupMetrics:
        return run.classes[name]

    return {
        "num_requests": _mean(point, lambda run: float(group(run).num_requests)),
        **_latencies(point, group),
        "goodput": _mean(point, lambda run: group(run).goodput[run.bounds]),
        "prefix_hit_rate": _mean(point, lambda run: _hit_rate(group(run))),
        "errors": _errors(point, group),
    }


def _latencies(point: Point, group: Callable[[RunMetrics], GroupMetrics]) -> Document:
    """Returns `ttft_ms` and its like: the mean over the seeds of each statistic."""
    found = {}
    for kind in LATENCIES:
        summaries = [group(run).latency[kind] for run in point.runs]
        found[f"{kind}_ms"] = {
            "mean": rounded(mean(each.mean for each in summaries)),
            **{f"p{q:g}": rounded(mean(each.percentiles[q] for each in summaries)) for q in summaries[0].percentiles},
            "max": rounded(mean(each.max for each in summaries)),
        }
    return found


def _errors(point: Point, group: Callable[[RunMetrics], GroupMetrics]) -> Document:
    kinds = sorted({kind for run in point.runs for kind in group(run).errors})
    return {
        "share": _mean(point, lambda run: group(run).error_share),
        **{kind: _mean(point, _errors_of(group, kind)) for kind in kinds},
    }


def _errors_of(group: Callable[[RunMetrics], GroupMetrics], kind: str) -> Callable[[RunMetrics], float]:
    return lambda run: float(group(run).errors.get(kind, 0))


def _objective(result: ObjectiveResult, point: Point) -> Document:
    """Returns one objective as judged: the value that decides, and that of each seed."""
    objective = result.objective
    single = [evaluate([objective], run)[0] for run in point.runs]
    return {
        "objective": objective.text,
        "name": objective.name,
        "value": rounded(result.value),
        "bound": objective.value,
        "met": result.met,
        "shown": None if result.value is None else objective.show(result.value),
        "note": result.note,
        "per_seed": [rounded(each.value) for each in single],
    }


def is_plural(name: str) -> bool:
    """Whether the measure that an objective names is one of several things: `errors`, `preemptions[chat]`."""
    return name.startswith(("errors", "preemptions"))


def _server(scenario: Scenario, deployment: AnyDeployment) -> Document:
    server = scenario.server
    if isinstance(deployment, OllamaDeployment):
        return ollama_server(server, deployment)
    flags = deployment.flags
    names = [name for name in type(server.flags).model_fields if hasattr(flags, name)]
    return {
        "kind": server.kind,
        "version": server.version,
        "model": server.model,
        "gpu": server.gpu,
        "tensor_parallel_size": server.tensor_parallel_size,
        "pipeline_parallel_size": server.pipeline_parallel_size,
        "data_parallel_size": server.data_parallel_size,
        **fleet_settings(server),
        "flags": {name: {"value": getattr(flags, name), "default": name in flags.defaulted} for name in names},
    }


def _memory(deployment: AnyDeployment) -> Document:
    if isinstance(deployment, OllamaDeployment):
        return ollama_memory(deployment)
    memory = deployment.memory
    gib = ("total_gib", "weights_gib", "activation_gib", "non_torch_gib", "graphs_gib", "kv_cache_gib")
    counts = ("kv_bytes_per_token", "block_size", "num_gpu_blocks", "kv_tokens", "max_model_len", "longest_context")
    return {
        **{name: rounded(getattr(memory, name)) for name in gib},
        "utilization": rounded(memory.utilization),
        **{name: getattr(memory, name) for name in counts},
        "max_concurrency": rounded(memory.max_concurrency),
        "max_concurrency_line": memory.max_concurrency_line,
        "estimated": list(memory.estimated),
    }


def _warnings(deployment: AnyDeployment, result: CapacityResult) -> list[str]:
    """Collects what the server and the runs at the answer and at the break want said, each once."""
    decisive = [point for point in result.points if point.load in (result.value, result.next_load)]
    runs = [run for point in decisive or result.points for run in point.runs]
    return said_once([*deployment.warnings, *(warning for run in runs for warning in run.warnings)])


def _rate(name: str) -> Callable[[RunMetrics], float | None]:
    def rate(run: RunMetrics) -> float | None:
        value: float | None = getattr(run.throughput, name)
        return value

    return rate


def _level(point: Point, name: str) -> Document:
    levels = [getattr(run.server, name) for run in point.runs]
    return {part: rounded(mean(getattr(level, part) for level in levels)) for part in ("mean", "max")}


def _preemptions_per_request(run: RunMetrics) -> float | None:
    return run.server.num_preemptions / run.total.num_requests if run.total.num_requests else None


def _hit_rate(group: GroupMetrics) -> float | None:
    return group.num_cached_tokens / group.num_prompt_tokens if group.num_prompt_tokens else None


def _mean(point: Point, measure: Callable[[RunMetrics], float | None]) -> float | int | None:
    return rounded(point.mean(measure))
