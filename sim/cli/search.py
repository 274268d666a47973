"""`headcount search`: which flags are best, when several things count."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import AsJson, Jobs, ScenarioFile, Seed, Seeds, Sets, Variant
from sim.cli.prices import parse_prices
from sim.cli.progress import ProgressLine
from sim.cli.run import at_one_load, file_name, run_overrides
from sim.cli.signals import INTERRUPTED, ends_by_signal

if TYPE_CHECKING:
    from reports.document import Document
    from reports.words import Words
    from sim.scenario.model import Scenario
    from sim.search import Archive, FlagSearch, Judge, Prices, SearchProgress, Space

_ALLOWED = {"preemptions": "preemptions", "broken": "objectives"}  # what --allow says -> the constraint it lifts
_FIFTH, _LEAST, _MOST = 5, 24, 120  # trials, where the number is not given


def search(  # noqa: PLR0917 - typer calls it, by name
    scenario: ScenarioFile,
    minimize: Annotated[
        str,
        typer.Option(metavar="METRICS", help="What should be small: ttft.p95, itl.p99, errors, cost, gpus, …"),
    ] = "",
    maximize: Annotated[
        str, typer.Option(metavar="METRICS", help="What should be large: users, throughput, goodput, …")
    ] = "",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FLAG=VALUES",
            help="Values of a flag: A,B,C or FROM:TO:STEP or FROM:TO:log (doublings); may be repeated.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Configurations to simulate. Default: a fifth of all, 24 to 120.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT", help="Let configurations have preemptions, or objectives broken: may be repeated."
        ),
    ] = None,
    users: Annotated[
        int | None, typer.Option(min=1, help="Measure at this many users: no capacity search.", show_default=False)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=1e-9, help="Measure at this many requests/s.", show_default=False)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Measure at this concurrency.", show_default=False)
    ] = None,
    gpu_price: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu-price", "--price", metavar="PRICE", help="Of a GPU hour, for cost; or GPU=PRICE, may be repeated."
        ),
    ] = None,
    currency: Annotated[str, typer.Option(help="Of the price.")] = "USD",
    set_: Sets = None,
    variant: Variant = None,
    seeds: Seeds = None,
    seed: Seed = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep trials there: a file for SQLite, or any Optuna storage; several processes may share it.",
            show_default="OUT/search.db",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write pareto.html and pareto.json there.", show_default="out/SCENARIO/search"
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Configurations chosen at a time; more keep more cores busy.")] = 4,
    jobs: Jobs = None,
    lang: Annotated[str, typer.Option(help="Language of pareto.html: en or pt-BR.")] = "en",
    as_json: AsJson = False,
) -> None:
    """Search for the flags that are best when several things count, and print those that nothing beats.

    The same command goes on where it was interrupted; started several times with one storage, the processes share the
    work. With users among the metrics, each configuration's capacity is searched for, and everything else is measured
    at that load. Exits with 0 when a configuration meets what is required, 1 when none does, 2 on bad input, 130 after
    Ctrl-C (or the TERM signal), with what was known by then.
    """
    from joblib import cpu_count

    from sim.draws import drawn_simulate
    from sim.search import FlagSearch, Prices
    from sim.simulate import simulate

    given = _Given(scenario, tuple(set_ or ()), variant, seeds, seed, users, rate, concurrency)
    prices = Prices(*parse_prices(gpu_price or [], of_any=True), currency)
    question = _question(given, (minimize, maximize), vary or [], allow or [], prices)
    folder = out if out is not None else Path("out") / file_name(question.base.name) / "search"
    words = _prepared(folder, lang)
    url = storage if storage is not None else str(folder / "search.db")
    archive = question.open(url)
    progress = Progress()
    made = FlagSearch(
        question.base, question.space, question.judge, archive, simulate,
        trials or question.default_trials(), batch, drawn_simulate, progress.report,
    )  # fmt: skip
    interrupted = _make(made, progress, jobs or cpu_count())
    document = question.document(archive, url, interrupted=interrupted)
    _write(document, folder, words)
    _print(document, as_json=as_json)
    if interrupted:
        typer.echo(
            f"interrupted: {len(document['trials'])} trials are kept; the same command goes on from there", err=True
        )
        raise typer.Exit(INTERRUPTED)
    if not document["front"]:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Given:
    """How the scenario was named on the command line."""

    path: Path
    sets: tuple[str, ...]
    variant: str | None
    seeds: int | None
    seed: int | None
    users: int | None
    rate: float | None
    concurrency: int | None

    def load(self) -> Scenario:
        """Returns the scenario; its server is not looked at, as flags that are varied may be what lets it start."""
        from sim.scenario.load import load_scenario

        loaded = load_scenario(self.path, [*self.sets, *run_overrides(self.seeds, self.seed)], self.variant)
        return at_one_load(loaded, self.path, self.users, self.rate, self.concurrency)

    def options(self) -> list[str]:
        """Returns what `headcount run` has to be given beside the scenario."""
        words = [] if self.variant is None else ["--variant", self.variant]
        for text in self.sets:
            words += ["--set", text]
        for name in ("seeds", "seed", "users", "rate", "concurrency"):
            value = getattr(self, name)
            if value is not None:
                words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
        return words


@dataclass(frozen=True, slots=True)
class _Question:
    """What is searched for."""

    base: Scenario
    space: Space
    judge: Judge
    path: Path
    options: tuple[str, ...]

    def default_trials(self) -> int:
        """Returns how many configurations are simulated when nobody says: a fifth, within limits."""
        return min(self.space.size, _MOST, max(_LEAST, math.ceil(self.space.size / _FIFTH)))

    def open(self, url: str) -> Archive:
        """Opens the storage, and sets Optuna to choose."""
        from sim.search import import_optuna, open_archive, resolved, study_name

        import_optuna()
        from sim.search.sampler import SpanningNsga2

        about = {"scenario": str(self.path), "vary": {axis.key: list(axis.values) for axis in self.space.axes}}
        archive = open_archive(
            url, study_name(self.base, self.space, self.judge), self.space, self.judge.measures, about
        )
        own = self.space.nearest(resolved(self.base, tuple(axis.key for axis in self.space.axes)))
        archive.study.sampler = SpanningNsga2(self.space, own)
        return archive

    def document(self, archive: Archive, url: str, *, interrupted: bool) -> Document:
        """Returns the result as plain data."""
        from reports.pareto import search_document
        from sim.search import run_command, shown_url

        return search_document(
            self.base, self.space, self.judge, archive.trials(),
            study=archive.study.study_name, storage=shown_url(url), interrupted=interrupted,
            run_command=lambda parameters: run_command(self.path, self.options, parameters),
        )  # fmt: skip


def _question(given: _Given, metrics: tuple[str, str], vary: list[str], allow: list[str], prices: Prices) -> _Question:
    from sim.search import CONSTRAINTS, Judge, parse_measures, parse_space

    base, options = given.load(), given.options()
    measures = parse_measures(*metrics, base)
    space = parse_space(vary, base)
    _check_prices(space, base, prices, [each.name for each in measures])
    lifted = _lifted(allow)
    if base.search is not None and not any(each.is_load for each in measures):
        base, options = _at_own_load(base, given.path), [*options, "--set", "search=null"]
    judge = Judge(measures, tuple(each for each in CONSTRAINTS if each not in lifted), prices)
    return _Question(base, space, judge, given.path, tuple(options))


def _at_own_load(base: Scenario, path: Path) -> Scenario:
    """Returns the scenario at the load that its workload states, without its search."""
    from sim.errors import UserError
    from sim.scenario.load import override
    from sim.scenario.problems import ScenarioError

    assert base.search is not None, "a scenario without a search is at its own load"
    try:
        return override(base, {"search": None})
    except ScenarioError:
        raise UserError(
            f"{path}: at which load? Give one (--users, --rate or --concurrency), or have {base.search.vary} among "
            "--maximize"
        ) from None


def _lifted(allow: list[str]) -> list[str]:
    from sim.errors import UserError
    from sim.scenario.explain import suggestion

    for name in allow:
        if name not in _ALLOWED:
            raise UserError(f"--allow {name}: unknown; {suggestion(name, _ALLOWED, noun='allowed')}")
    return [_ALLOWED[name] for name in allow]


def _check_prices(space: Space, base: Scenario, prices: Prices, names: list[str]) -> None:
    """Refuses to search for a cost that is not known."""
    from sim.errors import UserError

    if "cost" not in names:
        return
    varied = next((axis.values for axis in space.axes if axis.key == "server.gpu"), (base.server.gpu,))
    for gpu in varied:
        if prices.per_hour(gpu, 1) is None:
            raise UserError(f"--minimize cost: what does an hour of {gpu} cost? Give --gpu-price PRICE, or {gpu}=PRICE")


def _make(made: FlagSearch, progress: Progress, jobs: int) -> bool:
    """Makes the search; returns whether it was interrupted."""
    try:
        with ends_by_signal(), progress.alive():
            made.run(jobs=jobs)
    except KeyboardInterrupt:
        return True
    return False


def _prepared(folder: Path, lang: str) -> Words:
    """Returns the page's language, and makes sure that the page can be written: better now than after the search."""
    from reports.words import Words
    from sim.results.storage import check_writable

    words = Words.of(lang)
    check_writable(folder)
    return words


def _write(document: Document, folder: Path, words: Words) -> None:
    from reports.html import render_html
    from reports.pareto_page import search_report
    from sim.results.storage import write_text

    write_text(folder / "pareto.json", _as_json(document))
    write_text(folder / "pareto.html", render_html(search_report(document, words), words))
    typer.echo(f"page: {folder / 'pareto.html'}", err=True)


def _print(document: Document, *, as_json: bool) -> None:
    from reports.pareto_terminal import render_search

    typer.echo(_as_json(document) if as_json else render_search(document), nl=False)


def _as_json(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


class Progress(ProgressLine):
    """Says on stderr how far a search is and which trials failed."""

    def report(self, news: SearchProgress) -> None:
        """Takes the news of one trial."""
        if news.cause and news.trial is not None:
            self.write(f"failed: trial {news.trial.number}: {news.cause}\n", err=True)
        self.tell(f"{news.num_done} of {news.num_wanted} configurations, {news.num_front} on the front")
