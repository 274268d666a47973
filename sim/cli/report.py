"""`headcount report`: what a planner signs, from runs, sweeps and spot checks that were kept."""

from __future__ import annotations

import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import Jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.context import Prices
    from reports.inputs import Inputs
    from reports.source import Source
    from sim.scenario.model import Scenario

_AFFORDABLE_STEPS = 20_000_000  # a few minutes of simulation: what a report may cost without being asked for


class Format(StrEnum):
    """What is written."""

    html = "html"
    md = "md"
    json = "json"
    bench = "bench"
    bench_json = "bench-json"
    bench_json_detailed = "bench-json-detailed"
    prometheus = "prometheus"
    openmetrics = "openmetrics"


_REPORTS = (Format.html, Format.md, Format.json)  # the others show one run, in the words of vLLM's world


def report(  # noqa: PLR0917 - typer calls it, by name
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|SWEEP|SPOTCHECK|METRICS...",
            help="Folders written by `run --out`, `sweep` and `spot-check --out`, and snapshots of a real server's "
            "/metrics; several runs are compared, the rest stands beside them.",
        ),
    ],
    format_: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.html,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="`-` is stdout. Default: report.html in the first folder, else stdout."),
    ] = None,
    lang: Annotated[str, typer.Option(help="Language: en or pt-BR.")] = "en",
    what_if: Annotated[
        bool | None,
        typer.Option("--what-if/--no-what-if", help="Simulate changes that may help. Default: if that takes minutes."),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The run's scenario, where its files have to be found.")
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Snapshots of a real server's /metrics, in order; may be repeated."),
    ] = None,
    gpu_price: Annotated[
        float | None, typer.Option(min=0, metavar="PRICE", help="Price of a GPU hour, for costs.")
    ] = None,
    currency: Annotated[str, typer.Option(help="Of the price.")] = "USD",
    load: Annotated[
        float | None, typer.Option(help="The run for bench and metrics formats. Default: the answer's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Its seed. Default: the first.")] = None,
    jobs: Jobs = None,
) -> None:
    """Write a report of a run, a search, a sweep or a spot check, or compare runs: one HTML file, Markdown or JSON.

    `bench` is the block that `vllm bench serve` prints, `bench-json` its result file, `prometheus` the metrics of
    vLLM at the run's end, `openmetrics` their history for promtool to load.
    """
    from reports.inputs import read_inputs

    inputs = read_inputs(runs, _scenario(scenario), measured or [])
    if format_ not in _REPORTS:
        _check_single(format_, lang, what_if, gpu_price)
        _write(_single(inputs.sources, format_, load, seed), out)
        return
    _check_whole(format_, load, seed)
    if what_if:
        _check_one(len(inputs.sources))
    for source in inputs.sources if len(inputs.sources) == 1 else ():
        add_what_if(source, what_if, jobs)
    text = _rendered(inputs, format_, lang, _prices(gpu_price, currency))
    if out is None and format_ is Format.html:
        out = (runs[0] if runs[0].is_dir() else runs[0].parent) / "report.html"
    _write(text, out)


def _check_whole(format_: Format, load: float | None, seed: int | None) -> None:
    """Refuses to choose a run for a report, which shows them all.

    Raises:
        UserError: one was chosen.
    """
    from sim.errors import UserError

    if load is not None or seed is not None:
        option = "--load" if load is not None else "--seed"
        single = ", ".join(each for each in Format if each not in _REPORTS)
        raise UserError(f"{option}: --format {format_.value} shows all runs; one can be chosen for {single}")


def _check_single(format_: Format, lang: str, what_if: bool | None, gpu_price: float | None) -> None:
    """Refuses what a format of vLLM's world cannot say.

    Raises:
        UserError: it was asked for.
    """
    from sim.errors import UserError

    given = {"--lang": lang != "en", "--what-if": what_if, "--gpu-price": gpu_price is not None}
    option = next((option for option, is_given in given.items() if is_given), None)
    if option is not None:
        raise UserError(f"{option}: --format {format_.value} has no place for it; html, md and json have")


def _check_one(num_runs: int) -> None:
    """Refuses to simulate changes where no single run is reported.

    Raises:
        UserError: there are several, or none.
    """
    from sim.errors import UserError

    if num_runs != 1:
        raise UserError(f"--what-if: changes are simulated for the report of one run; got {num_runs} runs")


def _scenario(path: Path | None) -> Scenario | None:
    from sim.scenario.load import load_scenario

    return None if path is None else load_scenario(path)


def _single(sources: Sequence[Source], format_: Format, load: float | None, seed: int | None) -> str:
    """Writes one run of one folder in a format of vLLM's world."""
    from reports import bench_serve
    from reports.vllm_metrics import vllm_metrics
    from sim.errors import UserError

    if len(sources) != 1:
        raise UserError(f"--format {format_.value}: shows one run; got {len(sources)} runs")
    source = sources[0]
    load = source.shown_load if load is None else load
    run = source.chosen_run(load, seed)
    if format_ is Format.prometheus:
        return vllm_metrics(run, source.document).text(run.end_ns)
    if format_ is Format.openmetrics:
        return "".join(vllm_metrics(run, source.document).openmetrics())
    settings = bench_serve.BenchSettings(source.document["server"]["model"])
    if source.scenario is not None:
        settings = bench_serve.BenchSettings.of(source.scenario, load)
    result = bench_serve.bench_result(run, settings)
    if format_ is Format.bench:
        return bench_serve.render_console(result)
    return bench_serve.render_json(result, run if format_ is Format.bench_json_detailed else None)


def add_what_if(source: Source, wanted: bool | None, jobs: int | None) -> None:
    """Simulates changes that may help, unless that is stored, not wanted, not possible, or long and not asked for.

    Args:
        source: gets them, and its folder keeps them.
        wanted: None: when it is not long.
        jobs: processes at most; None: one a core.

    Raises:
        UserError: they are wanted, and the scenario is not known.
        Exit: Ctrl-C.
    """
    import json

    from joblib import cpu_count

    from reports.source import WHAT_IF_FILE
    from reports.what_if import estimate_steps, simulate_what_if
    from sim.capacity import SearchInterruptedError
    from sim.cli.signals import INTERRUPTED, ends_by_signal
    from sim.errors import UserError
    from sim.results.storage import write_text
    from sim.simulate import simulate

    if wanted is False:
        source.what_if = None
        return
    if source.what_if is not None:
        return
    if source.scenario is None:
        if wanted:
            raise UserError(f"--what-if: {source.folder} does not hold its scenario; give it with --scenario FILE")
        return
    steps = estimate_steps(source)
    if wanted is None and (steps is None or steps > _AFFORDABLE_STEPS):
        if steps is not None:
            typer.echo(f"changes not simulated: about {steps / 1e6:.0f} million steps; --what-if does it", err=True)
        return
    try:
        with ends_by_signal():
            source.what_if = simulate_what_if(source, simulate, jobs=jobs or cpu_count(), progress=_say)
    except (SearchInterruptedError, KeyboardInterrupt):
        typer.echo("interrupted: no report is written; --no-what-if writes one without simulating changes", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if source.folder is not None:
        text = json.dumps(source.what_if, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_text(source.folder / WHAT_IF_FILE, text)


def _say(change: str) -> None:
    typer.echo(f"simulating {change} …", err=True)


def _prices(gpu_price: float | None, currency: str) -> Prices | None:
    from reports.context import Prices
    from sim.errors import UserError

    if gpu_price is not None and not math.isfinite(gpu_price):
        raise UserError(f"--gpu-price {gpu_price}: expected a price of an hour, as in 2.5")
    return None if gpu_price is None else Prices(gpu_price, currency)


def _rendered(inputs: Inputs, format_: Format, lang: str, prices: Prices | None) -> str:
    from reports.as_json import render_json
    from reports.html import render_html
    from reports.markdown import render_markdown
    from reports.model import build_report
    from reports.words import Words

    words = Words.of(lang)
    built = build_report(inputs.sources, words, prices, inputs.beside)
    match format_:
        case Format.json:
            return render_json(built)
        case Format.md:
            return render_markdown(built, words)
    return render_html(built, words)


def _write(text: str, out: Path | None) -> None:
    from sim.errors import UserError
    from sim.results.storage import write_text

    if out is None or str(out) == "-":
        sys.stdout.write(text)
        return
    if out.is_dir():
        raise UserError(f"{out}: is a folder; --out names the file to write, as in --out {out}/report.html")
    write_text(out, text)
    typer.echo(str(out))
