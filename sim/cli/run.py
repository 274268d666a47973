"""`headcount run`: how much does this server support, and why not more?"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.options import AsJson, Concurrency, Jobs, Rate, Reference, ScenarioFile, Seed, Seeds, Sets, Users, Variant
from sim.cli.progress import ProgressLine
from sim.cli.signals import INTERRUPTED, ends_by_signal

if TYPE_CHECKING:
    from sim.capacity import CapacityResult, NoDataError, Simulate
    from sim.errors import UserError
    from sim.results.folder import ResultFolder
    from sim.scenario.model import Scenario


def run(  # noqa: PLR0917 - typer calls it, by name
    scenario: ScenarioFile,
    users: Users = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    set_: Sets = None,
    variant: Variant = None,
    seeds: Seeds = None,
    seed: Seed = None,
    reference: Reference = False,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep every run's records there.", show_default=False)
    ] = None,
    as_report: Annotated[
        bool, typer.Option("--report", help="Write an HTML report too, into --out or out/NAME.")
    ] = False,
    lang: Annotated[str, typer.Option(help="Language of the report: en or pt-BR.")] = "en",
    what_if: Annotated[
        bool | None,
        typer.Option("--what-if/--no-what-if", help="Simulate changes for the report. Default: if that takes minutes."),
    ] = None,
    step_split: Annotated[
        bool, typer.Option("--step-split", help="Say where the step time goes; one more run. With --report always.")
    ] = False,
    jobs: Jobs = None,
) -> None:
    """Simulate a scenario and print how many users the server supports, and why not more.

    Exits with 0 when some load is supported (a search) or the one load holds, 1 when not, 2 on bad input, 130 after
    Ctrl-C (or the TERM signal), with what was known by then.
    """
    from sim.capacity import NoDataError, SearchInterruptedError

    if not as_report:
        _refuse_report_options(lang, what_if)
    overrides = [*(set_ or []), *run_overrides(seeds, seed)]
    loaded = at_one_load(_load(scenario, overrides, variant), scenario, users, rate, concurrency)
    report = _Report(lang, what_if, jobs) if as_report else None
    if report is not None and out is None:
        out = Path("out") / file_name(loaded.name)
    try:
        with ends_by_signal():
            result = _find(loaded, reference=reference, out=out, jobs=jobs)
    except SearchInterruptedError as error:
        _print(loaded, error.result, as_json=as_json, out=out)
        raise typer.Exit(INTERRUPTED) from None
    except NoDataError as error:
        raise _placed(error, scenario, overrides, variant) from None
    try:
        with ends_by_signal():
            split = _split(loaded, result) if step_split or as_report else None
    except KeyboardInterrupt:
        _print(loaded, result, as_json=as_json, out=out)
        typer.echo("interrupted: the answer stands; where the step time goes is not known", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _print(loaded, result, as_json=as_json, out=out, split=split)
    if report is not None and out is not None:
        report.write(loaded, out)
    if not result.supported:
        raise typer.Exit(1)


def file_name(name: str) -> str:
    """Returns a scenario's name as one of a folder."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "scenario"


def run_overrides(seeds: int | None, seed: int | None) -> list[str]:
    """Returns the changes that `--seeds` and `--seed` mean."""
    given = {"run.seeds": seeds, "run.seed": seed}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def _refuse_report_options(lang: str, what_if: bool | None) -> None:
    """Refuses what only a report shows, where none is written.

    Raises:
        UserError: one was given.
    """
    from sim.errors import UserError

    if lang != "en":
        raise UserError(f"--lang {lang}: the language of the report, and none is written; add --report")
    if what_if is not None:
        option = "--what-if" if what_if else "--no-what-if"
        raise UserError(f"{option}: changes are simulated for the report, and none is written; add --report")


def _load(path: Path, overrides: list[str], variant: str | None) -> Scenario:
    from sim.cli.checked import load_checked

    return load_checked(path, overrides, variant)


def _placed(error: NoDataError, path: Path, overrides: list[str], variant: str | None) -> UserError:
    """Returns the error with the line of the objective that it is about."""
    from sim.scenario.load import locate_problem
    from sim.scenario.problems import ScenarioError

    key = ("objectives", error.index)
    return ScenarioError([locate_problem(path, key, error.message, tuple(overrides), variant)])


def at_one_load(
    scenario: Scenario, path: Path, users: int | None, rate: float | None, concurrency: int | None
) -> Scenario:
    """Returns the scenario with the load that the command line gives, and then without its search.

    Raises:
        UserError: several loads, or one that the workload does not have.
    """
    from sim.errors import UserError
    from sim.scenario.load import override

    options = {
        "--users": (users, "users", "workload.users"),
        "--rate": (rate, "open_loop", "workload.request_rate"),
        "--concurrency": (concurrency, "closed_loop", "workload.max_concurrency"),
    }
    given = {option: rest for option, rest in options.items() if rest[0] is not None}
    if not given:
        return scenario
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)}: give one load; got {len(given)}")
    ((option, (load, kind, key)),) = given.items()
    if scenario.workload.kind != kind:
        fitting = [name for name, (_, other, _) in options.items() if other == scenario.workload.kind]
        cure = f"; did you mean {fitting[0]}?" if fitting else ""
        raise UserError(f"{option}: the workload of {path} is of kind {scenario.workload.kind}, not {kind}{cure}")
    return override(scenario, {key: load, "search": None})


def _find(scenario: Scenario, *, reference: bool, out: Path | None, jobs: int | None) -> CapacityResult:
    from joblib import cpu_count

    from sim.capacity import find_capacity
    from sim.draws import drawn_simulate

    store = None
    if out is not None:
        store = _folder(scenario, out)
        store.prepare()
        store.write_scenario(json.dumps(scenario.model_dump(mode="json", by_alias=True), indent=2) + "\n")
    progress = Progress()
    with progress.alive():
        return find_capacity(
            scenario,
            simulation(reference),
            jobs=jobs or cpu_count(),
            store=store,
            progress=progress.report,
            drawn=None if scenario.search is None else drawn_simulate(scenario, reference=reference),
        )


def simulation(reference: bool) -> Simulate:
    """Returns what makes one run, with the fast path or with the reference scheduler."""
    from sim.simulate import simulate

    return partial(simulate, reference=True) if reference else simulate


def _folder(scenario: Scenario, out: Path) -> ResultFolder:
    from sim.capacity import unit_of
    from sim.results.folder import ResultFolder
    from sim.scenario.model import scenario_hash

    return ResultFolder(out, scenario.name, scenario_hash(scenario), unit_of(scenario))


def _split(scenario: Scenario, result: CapacityResult) -> dict[str, Any] | None:
    """Simulates the load that is the answer once more, with the first seed; None where step times are not vLLM's."""
    from reports.step_split import step_split_document
    from sim.results.step_split import step_times
    from sim.simulate import simulate

    if scenario.server.kind != "vllm" or not result.points:
        return None
    load = result.value or result.next_load if scenario.search is not None else result.points[0].load
    seed = result.seeds[0]
    times = step_times(simulate(scenario, seed=seed, load=load, step_split=True).step_split)
    return None if times is None else step_split_document(times, load, seed)


def _print(
    scenario: Scenario,
    result: CapacityResult,
    *,
    as_json: bool,
    out: Path | None,
    split: dict[str, Any] | None = None,
) -> None:
    from reports.document import build_document
    from reports.terminal import render
    from sim.deployment import plan_server

    document = build_document(scenario, plan_server(scenario), result, split)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if out is not None:
        _folder(scenario, out).write_result(text)
    typer.echo(text if as_json else render(document), nl=False)


class _Report:
    """What `--report` writes; an unknown language is refused before anything is simulated."""

    def __init__(self, lang: str, what_if: bool | None, jobs: int | None) -> None:
        from reports.words import Words

        self.words, self.what_if, self.jobs = Words.of(lang), what_if, jobs

    def write(self, scenario: Scenario, out: Path) -> None:
        from reports.html import render_html
        from reports.model import build_report
        from reports.source import Source
        from sim.cli.report import add_what_if
        from sim.results.storage import write_text

        source = Source.read(out, scenario)
        add_what_if(source, self.what_if, self.jobs)
        path = out / "report.html"
        write_text(path, render_html(build_report([source], self.words), self.words))
        typer.echo(f"report: {path}", err=True)


class Progress(ProgressLine):
    """Says on stderr how far a search is."""

    def report(self, num_runs: int, load: float | None, _seed: int) -> None:
        """Takes the news of one run."""
        at = "" if load is None else f", now at load {load:g}"
        self.tell(f"{num_runs} {'run' if num_runs == 1 else 'runs'}{at}")
