"""`headcount sweep`: a table over every combination of the values given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sim.cli.options import AsJson, Jobs, Reference, ScenarioFile, Seed, Seeds, Sets, Variant
from sim.cli.progress import ProgressLine
from sim.cli.run import file_name, run_overrides, simulation
from sim.cli.signals import INTERRUPTED, ends_by_signal

if TYPE_CHECKING:
    from sim.scenario.model import Scenario
    from sim.sweep import Axis, Sweep, SweepPoint, SweepProgress

_ENOUGH = 4  # runs, before the time that is left can be told from them


def sweep(  # noqa: PLR0917 - typer calls it, by name
    scenario: ScenarioFile,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Values of a key, A,B,C, FROM:TO:STEP or FROM:TO:log; may be repeated: every combination is run. "
            "users, request_rate, max_concurrency and context_tokens are loads, other keys are as in --set.",
        ),
    ] = None,
    set_: Sets = None,
    variant: Variant = None,
    seeds: Seeds = None,
    seed: Seed = None,
    jobs: Jobs = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep finished runs and tables there.", show_default="out/SCENARIO/sweep"),
    ] = None,
    as_json: AsJson = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Make the I-th of N parts of the runs only; without it, all are put together."
        ),
    ] = None,
    cluster: Annotated[
        Literal["ray"] | None, typer.Option(help="Run on a cluster in place of this machine.", show_default=False)
    ] = None,
    reference: Reference = False,
) -> None:
    """Simulate every combination of the values given, and print a table.

    Finished runs are kept: the same command goes on where it was interrupted. Exits with 0 when every run was made, 1
    when some failed (the others are in the table), 2 on bad input or when nothing can be written, 130 after Ctrl-C
    (or the TERM signal).
    """
    from sim.parallel import num_workers
    from sim.sweep import KeptRuns, Sweep, parse_axes, plan_points

    axes, part = parse_axes(vary or []), _parse_shard(shard)
    points = plan_points(scenario, axes, [*(set_ or []), *run_overrides(seeds, seed)], variant)
    sample = next(point.scenario for point in points if point.scenario is not None)
    kept = KeptRuns(out if out is not None else Path("out") / file_name(sample.name) / "sweep")
    kept.prepare()
    numbers = tuple(range(sample.run.seed, sample.run.seed + sample.run.seeds))
    progress = Progress()
    planned = Sweep(points, numbers, kept, simulation(reference), reference, part, progress.report)
    _Output(sample, axes, planned, progress, as_json=as_json, is_whole=shard is None).run(
        num_workers(jobs, cluster), cluster
    )


def _parse_shard(text: str | None) -> tuple[int, int]:
    from sim.errors import UserError

    if text is None:
        return 1, 1
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--shard {text}: expected I/N with I from 1 to N, for example 1/4")
    return int(match[1]), int(match[2])


class _Output:
    """Makes the sweep and prints its table, row by row in the order of the points."""

    def __init__(
        self,
        scenario: Scenario,
        axes: tuple[Axis, ...],
        sweep: Sweep,
        progress: Progress,
        *,
        as_json: bool,
        is_whole: bool,
    ) -> None:
        from sim.sweep import SweepTable

        self.axes, self.sweep, self.progress = axes, sweep, progress
        self.as_json, self.is_whole = as_json, is_whole
        self.table = SweepTable(scenario.name, axes, sweep.seeds)

    def run(self, jobs: int, cluster: Literal["ray"] | None) -> None:
        """Makes the sweep; exits with the code that `sweep` promises."""
        from sim.cli.sweep_table import footer, header, line

        if not self.as_json:
            self._print(header(self.table, self.sweep.points, self.sweep.shard))
        try:
            with ends_by_signal(), self.progress.alive():
                for result in self.sweep.results(jobs=jobs, cluster=cluster):
                    row = self.table.add(result)
                    if not self.as_json:
                        self._print(line(row, self.axes))
        except KeyboardInterrupt:
            self._finish(complete=False)
            typer.echo(
                f"interrupted: {self.progress.num_done} of {self.progress.num_runs} runs are finished and kept in "
                f"{self.sweep.kept.folder}; the same command goes on from there",
                err=True,
            )
            raise typer.Exit(INTERRUPTED) from None
        self._finish(complete=self.is_whole)
        if not self.as_json:
            self._print(footer(self.table))
        if any(row["status"] == "failed" for row in self.table.points):
            raise typer.Exit(1)

    def _finish(self, *, complete: bool) -> None:
        """Writes the tables of a whole sweep, and prints the JSON object."""
        self.table.complete = complete
        if complete:
            self.table.write(self.sweep.kept.folder)
        if self.as_json:
            self._print(self.table.as_json())

    def _print(self, text: str) -> None:
        self.progress.write(text)


@dataclass
class Progress(ProgressLine):
    """Says on stderr how far a sweep is and which runs failed."""

    num_done: int = 0
    num_runs: int = 0

    def report(self, news: SweepProgress) -> None:
        """Takes the news of one run."""
        self.num_done, self.num_runs = news.num_done, news.num_runs
        if news.failed is not None:
            self.write(f"failed: {named(news.failed.point)} seed {news.failed.seed}: {news.cause}\n", err=True)
        known = news.share > 0 and news.num_made >= _ENOUGH  # the first ones wait for the workers to start
        self.tell(f"{news.num_done} of {news.num_runs} runs", news.share if known else None)


def named(point: SweepPoint) -> str:
    """Returns a point as its values: `server.max_num_seqs=16 users=10`."""
    from sim.sweep.axes import as_text

    return " ".join(f"{key}={as_text(value)}" for key, value in point.overrides.items())
