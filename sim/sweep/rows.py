"""The results of a sweep as flat rows: one a point (means over its seeds), one a run. Times in ms, shares 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.capacity import Point
from sim.capacity.diagnosis import diagnose
from sim.capacity.point import mean
from sim.results.latency import LATENCIES
from sim.results.metrics import RunMetrics
from sim.results.objectives import evaluate
from sim.results.rounding import rounded
from sim.sweep.axes import as_text
from sim.sweep.points import SweepPoint
from sim.sweep.run import PointResult

Row = dict[str, Any]


def point_row(result: PointResult) -> Row:
    """Returns a point's row: what it is, how it is judged, and its numbers.

    `holds` is the verdict of `headcount run`: every objective met and no growing queue. A point with a failed run has
    no verdict, and the means of its other runs.
    """
    judged, row = result.judged, _identity(result.point)
    failed = bool(result.cause)
    row |= {
        "seeds": len(judged.seeds) if judged else 0,
        "status": "failed" if failed else "ok",
        "cause": result.cause,
        "holds": judged.holds if judged and not failed else None,
        "overloaded": judged.overloaded if judged else None,
        "calibrated": all(run.calibrated for run in judged.runs) if judged else None,
        "binding_objective": judged.binding if judged else None,
        "binding_resource": _resource(judged),
    }
    if judged is None:
        return row
    numbers = [run_numbers(run) for run in judged.runs]
    names = dict.fromkeys(name for each in numbers for name in each)
    row |= {name: rounded(mean(each.get(name) for each in numbers)) for name in names}
    for objective in judged.results:
        row |= _objective(objective.objective.text, objective.value, objective.met)
    return row


def run_rows(result: PointResult) -> list[Row]:
    """Returns a row a run of a point, failed ones too."""
    rows = []
    judged = result.judged
    for seed, run in zip(judged.seeds, judged.runs, strict=True) if judged else ():
        row = _identity(result.point) | {"seed": seed, "status": "ok", "cause": "", "calibrated": run.calibrated}
        row["overloaded"] = run.overload is not None
        row |= {name: rounded(value) for name, value in run_numbers(run).items()}
        assert result.point.scenario is not None, f"point {result.point.number} was simulated without a scenario"
        for each in evaluate(result.point.scenario.objectives, run):
            row |= _objective(each.objective.text, each.value, each.met)
        rows.append(row)
    rows += [
        _identity(result.point) | {"seed": seed, "status": "failed", "cause": cause}
        for seed, cause in result.causes.items()
    ]
    return rows


def run_numbers(run: RunMetrics) -> dict[str, float | None]:
    """Returns the numbers of a run, by the names of their columns."""
    total, server, throughput = run.total, run.server, run.throughput
    numbers: dict[str, float | None] = {
        "num_requests": total.num_requests,
        "num_finished": total.num_finished,
        "requests_per_s": throughput.completed,
        "offered_requests_per_s": throughput.offered,
        "output_tokens_per_s": throughput.output_tokens,
        "prompt_tokens_per_s": throughput.prompt_tokens,
    }
    for kind in LATENCIES:
        summary = total.latency[kind]
        numbers[f"{kind}_mean_ms"] = summary.mean
        numbers |= {f"{kind}_p{q:g}_ms": value for q, value in summary.percentiles.items()}
        numbers[f"{kind}_max_ms"] = summary.max
    for name in ("running", "waiting", "kv"):
        level = getattr(server, name)
        numbers |= {f"{name}_mean": level.mean, f"{name}_max": level.max}
    return numbers | {
        "error_share": total.error_share,
        "goodput_share": total.goodput[run.bounds],
        "busy_share": server.busy,
        "prefix_hit_share": server.prefix_hit_rate,
        "preemptions": server.num_preemptions,
        "preemptions_per_request": server.num_preemptions / total.num_requests if total.num_requests else None,
        "decode_step_ms": server.decode_step_ms,
        "mixed_step_ms": server.mixed_step_ms,
        "num_steps": server.num_steps,
        "duration_s": run.duration_s,
    }


def columns(rows: list[Row]) -> dict[str, list[Any]]:
    """Returns rows as columns of one type each: every name that a row has, None where one has it not.

    A value that is no number, no text and no yes or no becomes text; so does a whole column of several types.
    """
    found: dict[str, list[Any]] = {name: [] for row in rows for name in row}
    for row in rows:
        for name, values in found.items():
            value = row.get(name)
            values.append(value if isinstance(value, str | bool | int | float | None) else as_text(value))
    return {name: _of_one_type(values) for name, values in found.items()}


def _identity(point: SweepPoint) -> Row:
    return {**point.overrides, "load": point.stated_load, "unit": point.unit}


def _resource(judged: Point | None) -> str | None:
    diagnosis = diagnose(judged) if judged is not None else None
    return diagnosis.resource if diagnosis is not None else None


def _objective(text: str, value: float | None, met: bool | None) -> Mapping[str, Any]:
    """Returns the measure in the objective's own unit (s, share, per s, count), and whether it is met."""
    return {f"measured[{text}]": rounded(value), f"met[{text}]": met}


def _of_one_type(values: list[Any]) -> list[Any]:
    types = {type(value) for value in values if value is not None}
    if types <= {int, float} or len(types) < 2:
        return [float(value) if isinstance(value, int) and float in types else value for value in values]
    return [None if value is None else as_text(value) for value in values]
