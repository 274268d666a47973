"""Where the step time goes, in a result: the document's `step_split`, and what a terminal shows of it."""

from __future__ import annotations

from typing import Any

from sim.engine.step_split import KERNELS
from sim.results.step_split import MeanStep, StepTimes

Document = dict[str, Any]

_KINDS = (("all", "all steps"), ("decode_only", "decodes only"), ("with_prompts", "with prompts"))


def step_split_document(times: StepTimes, load: float | None, seed: int) -> Document:
    """Returns the mean step by part, of all steps and of each kind, of the run at one load with one seed."""
    return {
        "source": times.source,
        "load": load,
        "seed": seed,
        "kernels": {name: KERNELS[name] for name in KERNELS if name in times.all.parts},
        **{key: _mean_step(getattr(times, key)) for key, _ in _KINDS},
    }


def _mean_step(step: MeanStep | None) -> Document | None:
    if step is None:
        return None
    return {
        "count": step.count,
        "mean_ms": _number(step.mean_ms),
        "parts": {
            name: {"ms": _number(step.parts[name]), "share": _number(step.parts[name] / step.mean_ms)}
            for name in KERNELS
            if name in step.parts
        },
    }


def step_split_lines(document: Document) -> list[str]:
    """Returns a table: a row a part, milliseconds and share of the mean step of each kind."""
    split = document.get("step_split")
    if split is None:
        return []
    kinds = [(key, title) for key, title in _KINDS if split[key] is not None]
    at = "" if split["load"] is None else f" at load {split['load']:g}"
    known = "as its terms tell, which are not kernels" if "base" in split["kernels"] else "as its parts add up"
    lines = [f"Where the step time goes{at} (mean step in ms and %; {split['source']}, {known})"]
    rows = [["part", *(title for _, title in kinds), "in a kernel profile"]]
    for name, kernels in split["kernels"].items():
        rows.append([name, *(_cell(split[key]["parts"].get(name)) for key, _ in kinds), kernels])
    rows.append(["step", *(f"{split[key]['mean_ms']:.3g} ms" for key, _ in kinds), ""])
    rows.append(["steps", *(f"{split[key]['count']}" for key, _ in kinds), ""])
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=False)),
        ]
        lines.append(f"  {'  '.join([*cells, row[-1]])}".rstrip())
    return lines


def _cell(part: Document | None) -> str:
    return "-" if part is None else f"{part['ms']:.3g} ({100 * part['share']:.3g} %)"


def _number(value: float) -> float:
    """Returns six significant digits (see `reports.document`)."""
    return float(f"{value:.6g}")
