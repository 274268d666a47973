"""The options that several commands share, each with one name, one range and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioFile = Annotated[Path, typer.Argument(help="Scenario file.", show_default=False)]

Users = Annotated[int | None, typer.Option(min=1, help="Simulate this many users only: no search.", show_default=False)]
Rate = Annotated[float | None, typer.Option(min=1e-9, help="Simulate this many requests/s only.", show_default=False)]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Simulate this concurrency only.", show_default=False)]

Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value first; may be repeated.")
]
Variant = Annotated[str | None, typer.Option(metavar="NAME", help="Apply this variant of the scenario.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Repetitions. Default: the scenario's.")]
Seed = Annotated[int | None, typer.Option(min=0, help="First seed. Default: the scenario's.")]
Reference = Annotated[bool, typer.Option("--reference", help="Use the step-by-step reference scheduler.")]

Jobs = Annotated[int | None, typer.Option(min=1, help="Processes at most. Default: one a core.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
