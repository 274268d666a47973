"""`headcount check-schedule`: recorded schedules of the real vLLM, replayed and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def check_schedule(
    files: Annotated[
        list[Path],
        typer.Argument(help="Recorded schedules (.jsonl or .jsonl.gz).", show_default=False, metavar="FILE..."),
    ],
    reference: Annotated[
        bool, typer.Option("--reference", help="Use the reference scheduler even where the fast path applies.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a file.")] = False,
) -> None:
    """Replay recorded vLLM schedules and compare every field of every step.

    Prints one line a file, and at the first difference the step, the field, what was expected and what came out.
    Exits with 0 if all are equal, 1 if one differs, 2 if one cannot be read.
    """
    from calibrate.schedule_trace import Comparison, check_trace
    from sim.errors import UserError

    def line(result: Comparison) -> str:
        if as_json:
            row: dict[str, Any] = {"file": str(result.path), "equal": result.difference is None}
            row |= {"steps": result.num_steps, "requests": result.num_requests, "difference": result.difference}
            return json.dumps(row)
        if result.difference is None:
            return f"{result.path}: equal ({result.num_steps} steps, {result.num_requests} requests)"
        return f"{result.path}: DIFFERENT: {result.difference}"

    num_different = num_unreadable = 0
    for path in files:
        try:
            result = check_trace(path, reference=reference)
        except UserError as error:
            num_unreadable += 1
            typer.echo(str(error), err=True)
            continue
        num_different += result.difference is not None
        typer.echo(line(result))
    if num_unreadable:
        raise typer.Exit(2)
    if num_different:
        raise typer.Exit(1)
