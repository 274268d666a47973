"""The result of `headcount what-if`: as plain data, and as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from reports.document import Document
from sim.capacity.loads import own_load, unit_of
from sim.results.rounding import rounded
from sim.results.said_once import said_once
from sim.results.storage import versions
from sim.scenario.model import Scenario, scenario_hash
from sim.search import Measure
from sim.what_if import ChangeResult, Effect, WhatIfResult

FORMAT = 1
"""Of the document; rises when a reader of older ones would misread it."""

_COUNTS = ("preemptions",)  # shown as differences and not as shares: they are often 0 before


def effects_document(base: Scenario, measures: Sequence[Measure], result: WhatIfResult) -> Document:
    """Returns everything that is known; values in the unit of the measure, six significant digits."""
    baseline = result.baseline
    return {
        "format": FORMAT,
        "scenario": base.name,
        "scenario_hash": scenario_hash(base),
        "load": rounded(result.load if result.load is not None else own_load(base)),
        "unit": unit_of(base),
        "seeds": list(result.seeds),
        "metrics": [{"metric": each.name, "unit": each.unit, "better": each.direction} for each in measures],
        "calibrated": all(run.calibrated for run in baseline.runs),
        "baseline": {
            "holds": baseline.holds,
            "broken": baseline.binding,
            "measures": {each.name: rounded(each.of_point(baseline)) for each in measures},
            "shown": {each.name: each.shown(each.of_point(baseline)) for each in measures},
        },
        "changes": [_change(each, measures) for each in result.changes],
        "warnings": said_once(text for run in baseline.runs for text in run.warnings),
        "versions": versions(),
    }


def _change(result: ChangeResult, measures: Sequence[Measure]) -> Document:
    change = result.change
    return {
        "change": change.text,
        "key": change.key,
        "before": change.before,
        "after": change.after,
        "status": result.status,
        "cause": result.cause,
        "holds": result.holds,
        "warnings": list(result.warnings),
        "effects": {each.name: _effect(each, result.effects[each.name]) for each in measures} if result.effects else {},
    }


def _effect(measure: Measure, effect: Effect) -> Document:
    share = effect.difference / effect.before if effect.difference is not None and effect.before else None
    return {
        "before": rounded(effect.before),
        "after": rounded(effect.after),
        "difference": rounded(effect.difference),
        "low": rounded(effect.low),
        "high": rounded(effect.high),
        "share": rounded(share),
        "clear": effect.is_clear,
        "none": effect.is_none,
        "better": _is_better(measure, effect),
        "num_pairs": effect.num_pairs,
    }


def _is_better(measure: Measure, effect: Effect) -> bool | None:
    """Whether the change is an improvement; None where it cannot be told from chance."""
    if not effect.is_clear or effect.difference is None:
        return None
    return (effect.difference > 0) == (measure.direction == "maximize")


def render_effects(document: Document) -> str:
    """Returns the table, free of anything that depends on when or where it is made."""
    names = [each["metric"] for each in document["metrics"]]
    cells = [["", *names, "objectives"]]
    cells.append(
        ["as it is", *(document["baseline"]["shown"][name] for name in names), _verdict(document["baseline"]["holds"])]
    )
    cells += [_row(each, names) for each in document["changes"]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names) + 1)]
    lines = [*_headline(document), ""]
    for first, *rest, last in cells:
        shown = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *shown, last]).rstrip())
    said = [
        *document["warnings"],
        *(f"{each['change']}: {text}" for each in document["changes"] for text in each["warnings"]),
    ]
    if said:
        lines += ["", "Warnings", *(f"  {text}" for text in said)]
    return "\n".join(lines) + "\n"


def _headline(document: Document) -> list[str]:
    unit = {"requests_per_s": "requests/s", "context_tokens": "tokens of context"}.get(
        document["unit"], document["unit"]
    )
    load = "its own load" if document["load"] is None else f"{document['load']:g} {unit}"
    number = len(document["seeds"])
    times = "fitted to measured servers" if document["calibrated"] else "UNCALIBRATED, not fitted to a measured server"
    method = (
        f"{number} seeds, the same requests for all; in brackets the 95 % interval of the mean difference, ~ where it "
        "holds 0"
        if number > 1
        else "one seed, so no intervals: an effect may be chance (--seeds)"
    )
    return [f"{document['scenario']}: one flag changed at a time, at {load}", f"  {method}", f"  step times: {times}"]


def _row(change: Document, names: list[str]) -> list[str]:
    title = str(change["change"])
    if change["status"] in ("refused", "failed"):
        word = "does not start" if change["status"] == "refused" else "failed"
        return [title, *[""] * len(names), f"{word}: {change['cause']}"]
    return [title, *(_shown(name, change["effects"][name]) for name in names), _verdict(change["holds"])]


def _shown(name: str, effect: Document) -> str:
    if effect["difference"] is None:
        return "no data"
    if effect["none"]:
        return "="
    is_share = name not in _COUNTS and bool(effect["before"])
    scale = 100 / abs(effect["before"]) if is_share else 1.0
    shown = f"{_signed(scale * effect['difference'])}{' %' if is_share else ''}"
    if effect["low"] is None:
        return shown
    sign = "" if effect["clear"] else "~"
    return f"{sign}{shown} ({_signed(scale * effect['low'])} to {_signed(scale * effect['high'])})"


def _signed(value: float) -> str:
    return f"{value:+.0f}" if abs(value) >= 9.95 else f"{value:+.2g}"


def _verdict(holds: bool | None) -> str:
    return {True: "met", False: "broken", None: ""}[holds]
