"""`headcount spot-check`: a scenario against the live server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import AsJson, Sets, Variant
from sim.cli.progress import ProgressLine
from sim.cli.signals import INTERRUPTED, ends_by_signal

if TYPE_CHECKING:
    from calibrate.spot_comparison import SpotCheck
    from sim.scenario.model import Scenario


def spot_check(  # noqa: PLR0917 - typer calls it, by name
    scenario: Annotated[Path, typer.Argument(help="Scenario file, with one load.", show_default=False)],
    base_url: Annotated[str, typer.Option(metavar="URL", help="The live server, such as http://127.0.0.1:8000.")],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The served model's name.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Real runs; two or more show the server's own spread.")] = 2,
    tolerance: Annotated[float, typer.Option(min=0, metavar="PERCENT", help="Median error allowed.")] = 10.0,
    set_: Sets = None,
    variant: Variant = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests sent at most, all runs together.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the distributions there (.png or .svg).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep it there, for `headcount report`.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a scenario's requests to a live server, simulate the same ones, and compare.

    Prints TTFT, TPOT, ITL, E2E, throughput, preemptions and prefix hit rate of each real run and of the simulation,
    with signed errors. Passes when the median error of the latencies at p50, p90 and p99 is within the tolerance, or
    within twice the spread between the real runs, and preemptions within 20 %. The runs take as long as the scenario.
    Exits with 0 when it passes, 1 when it fails, 2 on bad input, 130 after Ctrl-C.
    """
    from calibrate.spot_plot import write_plot
    from calibrate.spot_store import write_spot_check
    from calibrate.spot_text import as_document, as_text
    from sim.cli.checked import load_checked

    if plot is not None:
        _check_ending(plot)
    try:
        with ends_by_signal():
            loaded = _with_load(load_checked(scenario, set_ or [], variant), scenario)
            check = _run(loaded, base_url, model, repeats, max_requests)
    except KeyboardInterrupt:
        typer.echo("interrupted: nothing is compared yet", err=True)
        raise typer.Exit(INTERRUPTED) from None
    verdict = check.verdict(tolerance)
    if plot is not None:
        write_plot(check, plot)
    if out is not None:
        write_spot_check(check, verdict, out)
    typer.echo(json.dumps(as_document(check, verdict), indent=2) if as_json else as_text(check, verdict))
    if any(repeat.live.stopped == "interrupted" for repeat in check.repeats):
        raise typer.Exit(INTERRUPTED)
    if not verdict.passed:
        raise typer.Exit(1)


def _check_ending(plot: Path) -> None:
    """Refuses a kind of file that is not drawn before the runs are made.

    Raises:
        UserError: it is one.
    """
    from sim.errors import UserError

    if plot.suffix not in (".png", ".svg"):
        raise UserError(f"--plot: {plot}: the ending must be .png or .svg")


def _with_load(scenario: Scenario, path: Path) -> Scenario:
    """Returns a scenario whose workload states its load: a search is not made on a live server.

    Raises:
        UserError: it does not.
    """
    from sim.errors import UserError
    from sim.scenario.load import override
    from sim.scenario.problems import ScenarioError

    if scenario.search is None:
        return scenario
    try:
        override(scenario, {"search": None})
    except ScenarioError as error:
        key = error.problems[0].key
        raise UserError(f"{path}: at which load? Nothing is searched for here; give it with --set {key}=…") from None
    return scenario


def _run(scenario: Scenario, base_url: str, model: str | None, repeats: int, max_requests: int | None) -> SpotCheck:
    import asyncio

    from calibrate.http_client import Endpoint
    from calibrate.spot_check import spot_check as check_live

    line, endpoint = ProgressLine(f"asking {base_url}"), Endpoint.of(base_url, model)
    with line.alive():
        return asyncio.run(check_live(scenario, endpoint, repeats=repeats, max_requests=max_requests, report=line.tell))
