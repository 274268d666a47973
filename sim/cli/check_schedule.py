"""`headcount check-schedule`: what the real vLLM scheduled, replayed and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from calibrate.schedule_trace import Comparison
    from calibrate.step_replay import StepComparison


def check_schedule(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Recorded schedules, or step records of a live server (.jsonl or .jsonl.gz).",
            show_default=False,
            metavar="FILE...",
        ),
    ],
    reference: Annotated[
        bool, typer.Option("--reference", help="Use the reference scheduler even where the fast path applies.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a file.")] = False,
) -> None:
    """Replay what the real vLLM scheduled, and compare every field of every step.

    Takes schedules recorded in virtual time, and what the step recorder of `headcount calibrate` writes: then the
    recorded durations are the step times. Prints one line a file, and at the first difference the step, the field,
    what was expected and what came out. Exits with 0 if all are equal, 1 if one differs, 2 if one cannot be read.
    """
    from sim.errors import UserError

    num_different = num_unreadable = 0
    for path in files:
        try:
            result = _checked(path, reference)
        except UserError as error:
            num_unreadable += 1
            typer.echo(str(error), err=True)
            continue
        num_different += result.difference is not None
        typer.echo(json.dumps(_row(result)) if as_json else _line(result))
        for warning in getattr(result, "warnings", ()):
            typer.echo(f"warning: {warning}", err=True)
    if num_unreadable:
        raise typer.Exit(2)
    if num_different:
        raise typer.Exit(1)


def _checked(path: Path, reference: bool) -> Comparison | StepComparison:
    """Replays a file of either kind; what is neither is told by the reader of schedules."""
    from calibrate.schedule_trace import check_trace
    from calibrate.step_reader import is_step_record
    from calibrate.step_replay import check_steps

    return (check_steps if is_step_record(path) else check_trace)(path, reference=reference)


def _row(result: Comparison | StepComparison) -> dict[str, Any]:
    from calibrate.step_replay import StepComparison

    row: dict[str, Any] = {"file": str(result.path), "equal": result.difference is None}
    row |= {"steps": result.num_steps, "requests": result.num_requests, "difference": result.difference}
    if isinstance(result, StepComparison):
        row |= {"preemptions": result.num_preemptions, "hits_taken_from_the_record": result.num_input_hits}
    return row


def _line(result: Comparison | StepComparison) -> str:
    from calibrate.step_replay import StepComparison

    if result.difference is not None:
        return f"{result.path}: DIFFERENT: {result.difference}"
    counts = f"{result.num_steps} steps, {result.num_requests} requests"
    if isinstance(result, StepComparison) and result.num_input_hits:
        counts += f"; {result.num_input_hits} first prefix hits taken from the record, which has no block hashes"
    return f"{result.path}: equal ({counts})"
