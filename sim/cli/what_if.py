"""`headcount what-if`: what each flag does, one at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import AsJson, Jobs, ScenarioFile, Seed, Seeds, Sets, Variant
from sim.cli.progress import ProgressLine
from sim.cli.run import at_one_load, run_overrides
from sim.cli.signals import INTERRUPTED, ends_by_signal

if TYPE_CHECKING:
    from sim.capacity import Load
    from sim.scenario.model import Scenario
    from sim.search import Measure
    from sim.what_if import WhatIfProgress

_METRICS = "ttft.p95,itl.p95,throughput,preemptions"


def what_if(  # noqa: PLR0917 - typer calls it, by name
    scenario: ScenarioFile,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FLAG=VALUES",
            help="Try these values of a flag: A,B,C or FROM:TO:STEP or FROM:TO:log; may be repeated. "
            "Default: each flag a step down and up.",
        ),
    ] = None,
    metrics: Annotated[str, typer.Option(help="What to compare, by the names of objectives.")] = _METRICS,
    users: Annotated[int | None, typer.Option(min=1, help="Compare at this many users.", show_default=False)] = None,
    rate: Annotated[
        float | None, typer.Option(min=1e-9, help="Compare at this many requests/s.", show_default=False)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Compare at this concurrency.", show_default=False)
    ] = None,
    set_: Sets = None,
    variant: Variant = None,
    seeds: Seeds = None,
    seed: Seed = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Change one flag at a time, and print what that does to latency and throughput, with an interval.

    All is measured at one load on the same requests: the load given, or the one that the scenario's server supports
    (which is searched for first). Exits with 0 when every change was simulated or would be refused by vLLM, 1 when
    some simulation failed, 2 on bad input, 130 after Ctrl-C (or the TERM signal).
    """
    from joblib import cpu_count

    from reports.effects import effects_document, render_effects
    from sim.cli.checked import load_checked
    from sim.simulate import simulate
    from sim.what_if import WhatIf, default_changes, parse_changes

    overrides = [*(set_ or []), *run_overrides(seeds, seed)]
    base = at_one_load(load_checked(scenario, overrides, variant), scenario, users, rate, concurrency)
    changes = parse_changes(vary, base) if vary else default_changes(_of_vllm(base))
    measures = _measures(metrics, base)
    progress = Progress()
    try:
        with ends_by_signal(), progress.alive():
            load = _load(base, jobs or cpu_count(), progress)
            asked = WhatIf(base, load, changes, measures, simulate, progress.report)
            result = asked.run(jobs=jobs or cpu_count())
    except KeyboardInterrupt:
        typer.echo("interrupted: nothing is compared yet", err=True)
        raise typer.Exit(INTERRUPTED) from None
    document = effects_document(base, measures, result)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    typer.echo(text if as_json else render_effects(document), nl=False)
    if any(each.status == "failed" for each in result.changes):
        raise typer.Exit(1)


def _of_vllm(base: Scenario) -> Scenario:
    from sim.errors import UserError

    if base.server.kind != "vllm":
        raise UserError(f"server.kind: flags of vLLM are changed; the scenario's server is of kind {base.server.kind}")
    return base


def _measures(text: str, base: Scenario) -> list[Measure]:
    """Reads `--metrics`; what no run tells has no effect to show."""
    from sim.errors import UserError
    from sim.search import parse_measure

    names = [each.strip() for each in text.split(",") if each.strip()]
    if not names:
        raise UserError(f"--metrics: none given; for example {_METRICS}")
    found = [parse_measure(name, base) for name in dict.fromkeys(names)]
    for each in found:
        if each.objective is None:
            raise UserError(f"--metrics {each.name}: not measured in a run; `headcount search` and `report` compare it")
    return found


def _load(base: Scenario, jobs: int, progress: Progress) -> Load:
    """Returns the load to compare at: the scenario's own, or what its server supports."""
    from sim.capacity import NoDataError, SearchInterruptedError, find_capacity
    from sim.errors import UserError
    from sim.simulate import simulate

    if base.search is None:
        return None
    typer.echo("searching for the load that the server supports", err=True)
    try:
        result = find_capacity(base, simulate, jobs=jobs, progress=progress.searching)
    except SearchInterruptedError:
        raise KeyboardInterrupt from None
    except NoDataError as error:
        raise UserError(f"{error}; or give the load (--users, --rate or --concurrency)") from None
    return result.value or result.points[0].load


class Progress(ProgressLine):
    """Says on stderr how far a comparison is."""

    def report(self, news: WhatIfProgress) -> None:
        """Takes the news of one run."""
        what = "the server as it is" if news.change is None else news.change.text
        self.tell(f"{news.num_done} of {news.num_runs} runs, last: {what}")

    def searching(self, num_runs: int, _load: float | None, _seed: int) -> None:
        """Takes the news of one run of the search for the load."""
        self.tell(f"searching for the load, {num_runs} runs")
