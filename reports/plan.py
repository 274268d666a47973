"""A plan as plain data (`headcount plan --json`) and as text: a table of deployments, the cheapest first."""

from __future__ import annotations

from typing import Any

from reports.numbers import show
from sim.planning import Check, Plan, PlanRow
from sim.results.rounding import rounded
from sim.results.storage import versions
from sim.scenario.model import Scenario, scenario_hash

FORMAT = 1
"""Of the document; rises when a reader of older ones would misread it."""

Document = dict[str, Any]

_UNITS = {"users": "users", "requests_per_s": "requests/s", "concurrency": "concurrent requests"}


def plan_document(scenario: Scenario, plan: Plan, currency: str) -> Document:
    """Returns everything that a plan says; `sim/results/plan.schema.json` describes it."""
    request = plan.request
    return {
        "format": FORMAT,
        "scenario": scenario.name,
        "scenario_hash": scenario_hash(scenario),
        "unit": plan.unit,
        "load": request.load,
        "peak_factor": request.peak_factor,
        "peak": request.peak,
        "survive_loss": request.survive_loss,
        "objectives": [objective.text for objective in scenario.objectives],
        "currency": currency if request.prices else None,
        "prices_per_gpu_hour": dict(sorted(request.prices.items())),
        "holds": plan.holds,
        "interrupted": plan.interrupted,
        "seeds": list(plan.seeds),
        "deployments": [_row(row) for row in plan.rows],
        "versions": versions(),
    }


def _row(row: PlanRow) -> Document:
    candidate = row.candidate
    return {
        "gpu": candidate.gpu,
        "tensor_parallel_size": candidate.tensor_parallel_size,
        "replicas": row.replicas,
        "gpus": row.num_gpus,
        "price_per_hour": rounded(row.price_per_hour),
        "one_replica": rounded(row.one_replica),
        "one_replica_at_least": row.at_least,
        "at_peak": _check(row.peak),
        "one_lost": _check(row.loss),
        "profile": candidate.scenario.server.profile if candidate.scenario is not None else None,
        "calibrated": row.calibrated,
        "spot_check": list(row.spot_check),
        "command": row.command,
        "notes": list(candidate.notes),
        "broken": _check(row.broken),
        "problem": row.problem,
    }


def _check(check: Check | None) -> Document | None:
    if check is None:
        return None
    return {
        "replicas": check.replicas,
        "load": rounded(check.load),
        "holds": check.holds,
        "nearest": check.nearest.text,
        "name": check.nearest.name,
        "value": rounded(check.value),
        "shown": None if check.value is None else check.nearest.show(check.value),
        "share_of_bound": rounded(check.excess),
        "overloaded": check.overloaded,
        "warnings": list(check.warnings),
    }


def render_plan(document: Document) -> str:
    """Returns the text for a terminal."""
    sections = [_head(document), _table(document), _without(document), _spot_checks(document), _commands(document)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _head(document: Document) -> list[str]:
    unit = _UNITS[document["unit"]]
    lost = f"; with one replica lost, {show(document['load'])} must still hold" if document["survive_loss"] else ""
    number = len(document["seeds"])
    means = f"means over {number} seeds" if number > 1 else "one seed"
    answer = "interrupted: " if document["interrupted"] else "" if document["holds"] else "nothing holds: "
    lines = [
        f"{answer}{document['scenario']}: {show(document['load'])} {unit}, {show(document['peak'])} at the peak "
        f"(factor {show(document['peak_factor'])}){lost}",
        f"  objectives ({means}): {', '.join(document['objectives'])}",
    ]
    return [*lines, *_unpriced(document)]


def _unpriced(document: Document) -> list[str]:
    """Says which prices are missing, and which were given for nothing."""
    prices = document["prices_per_gpu_hour"]
    tried = list(dict.fromkeys(row["gpu"] for row in document["deployments"]))
    without = [gpu for gpu in tried if gpu not in prices]
    unused = [gpu for gpu in prices if gpu not in tried]
    lines = []
    if tried and len(without) == len(tried):
        lines.append(
            "  no prices: ordered by number of GPUs; give --gpu-price GPU=PRICE for each (of one GPU, an hour)"
        )
    elif without:
        lines.append(f"  no price of {', '.join(without)}: listed last, by number of GPUs; give --gpu-price GPU=PRICE")
    if unused and tried:
        lines.append(f"  prices not used, for no such GPU is tried (--gpus): {', '.join(unused)}")
    return lines


def _table(document: Document) -> list[str]:
    """Returns the deployments that hold."""
    held = [row for row in document["deployments"] if row["replicas"] is not None]
    if not held:
        return []
    currency = document["currency"] or "price"
    header = [
        f"{currency}/h",
        "replicas",
        "server",
        "GPUs",
        "one replica",
        "at the peak",
        "with one lost",
        "step times",
    ]
    rows = [header]
    for row in held:
        profile = row["profile"] if row["calibrated"] else f"{row['profile']}, UNCALIBRATED"
        least = "at least " if row["one_replica_at_least"] else ""
        rows.append([
            "-" if row["price_per_hour"] is None else f"{row['price_per_hour']:.2f}", str(row["replicas"]),
            _name(row), str(row["gpus"]), f"{least}{show(row['one_replica'])}", _measured(row["at_peak"]),
            _measured(row["one_lost"]), profile,
        ])  # fmt: skip
    widths = [max(len(row[index]) for row in rows) for index in range(len(header))]
    first = "the cheapest" if any(row["price_per_hour"] is not None for row in held) else "the fewest GPUs"
    lines = [f"Deployments that hold, {first} first (the measure nearest to its bound, and how near)"]
    numeric = {0, 1, 3, 4}
    for row in rows:
        cells = [
            cell.rjust(width) if index in numeric else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def _name(row: Document) -> str:
    return f"{row['tensor_parallel_size']} x {row['gpu']}" if row["tensor_parallel_size"] > 1 else str(row["gpu"])


def _measured(check: Document | None) -> str:
    if check is None:
        return "-"
    share = "" if check["share_of_bound"] is None else f" ({100 * check['share_of_bound']:.0f} %)"
    queue = ", and the queue grows" if check["overloaded"] else ""
    return f"{check['name']} {check['shown'] or 'without data'}{share}{queue}"


def _without(document: Document) -> list[str]:
    rows = [row for row in document["deployments"] if row["replicas"] is None]
    lines = []
    for row in rows:
        broken = f": {_measured(row['broken'])} at {show(row['broken']['load'])}" if row["broken"] else ""
        lines.append(f"  {_name(row)}: {row['problem']}{broken}")
    return ["Candidates that do not", *lines] if lines else []


def _spot_checks(document: Document) -> list[str]:
    """Groups the deployments by what makes a measurement due."""
    found: dict[str, list[str]] = {}
    for row in document["deployments"]:
        for reason in row["spot_check"]:
            found.setdefault(reason, []).append(f"{row['replicas']} x ({_name(row)})")
    if not found:
        return []
    lines = ["Measure before you buy (headcount calibrate, spot-check), because"]
    return [*lines, *(f"  {reason}: {', '.join(names)}" for reason, names in found.items())]


def _commands(document: Document) -> list[str]:
    rows = [row for row in document["deployments"] if row["command"]]
    notes = dict.fromkeys(note for row in document["deployments"] for note in row["notes"])
    lines = ["Run one alone, at the peak", *(f"  {row['command']}" for row in rows)] if rows else []
    return [*lines, *(f"  {note}" for note in notes)]
