"""`headcount plan`: which and how many GPUs serve so many users, and what they cost."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.checked import gpu_named
from sim.cli.options import AsJson, Jobs, Seeds, Sets, Variant
from sim.cli.prices import parse_prices
from sim.cli.progress import ProgressLine
from sim.cli.signals import INTERRUPTED, ends_by_signal
from sim.scenario.bounds import MOST_REPLICAS

if TYPE_CHECKING:
    from sim.planning import Candidate, Plan, Request
    from sim.scenario.model import Scenario


def plan(  # noqa: PLR0917 - typer calls it, by name
    scenario: Annotated[Path, typer.Argument(help="Scenario file: the workload, and one server.", show_default=False)],
    users: Annotated[int | None, typer.Option(min=1, help="Users in the usual hours.", show_default=False)] = None,
    rate: Annotated[float | None, typer.Option(min=1e-9, help="Requests/s instead.", show_default=False)] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Concurrent requests instead.", show_default=False)
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="GPU,…", help="GPUs to try. Default: the scenario's.", show_default=False)
    ] = None,
    tp: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="Tensor parallel sizes. Default: the smallest that starts, and twice that."),
    ] = None,
    objectives: Annotated[
        list[str] | None,
        typer.Option("--objectives", metavar="OBJECTIVE", help="In place of the scenario's; may be repeated."),
    ] = None,
    peak_factor: Annotated[float, typer.Option(min=1, max=1000, help="The peak, as a multiple of the load.")] = 1.3,
    survive_loss: Annotated[
        bool, typer.Option(help="Whether the load must hold with one replica fewer (without the peak).")
    ] = True,
    max_replicas: Annotated[int, typer.Option(min=1, max=MOST_REPLICAS, help="Most replicas of a deployment.")] = 64,
    price: Annotated[
        list[str] | None,
        typer.Option("--gpu-price", "--price", metavar="GPU=PRICE", help="Of one GPU for an hour; may be repeated."),
    ] = None,
    currency: Annotated[str, typer.Option(help="Of the prices.")] = "USD",
    router: Annotated[
        str | None, typer.Option(help="How requests are divided. Default: the scenario's, or least_requests.")
    ] = None,
    set_: Sets = None,
    variant: Variant = None,
    seeds: Seeds = None,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep finished runs there.", show_default="out/SCENARIO/plan"),
    ] = None,
    jobs: Jobs = None,
) -> None:
    """Find the cheapest deployments that serve a load with headroom: GPU, tensor parallelism, replicas.

    Each is simulated with all its replicas at the peak, and with one fewer at the load. Finished runs are kept: the
    same command goes on where it was interrupted. Exits with 0 when some deployment holds, 1 when none does, 2 on bad
    input (a --tp that the model cannot be spread over, too), 130 after Ctrl-C (or the TERM signal), with what was
    finished by then.
    """
    from sim.planning import PlanInterruptedError, Request, make_plan
    from sim.simulate import simulate
    from sim.sweep.kept import KeptRuns

    overrides = [*(set_ or []), *([f"run.seeds={seeds}"] if seeds is not None else [])]
    if objectives:
        overrides.append(f"objectives={json.dumps(objectives)}")
    loaded = _load(scenario, overrides, variant, _load_key(users, rate, concurrency))
    load = users or rate or concurrency or 0
    _, prices = parse_prices(price or [], of_any=False)
    request = Request(load, peak_factor, survive_loss, max_replicas, prices, in_whole_numbers=not rate)
    option = "--users" if users else "--rate" if rate else "--concurrency"
    _check_peak(loaded, request, option, _load_key(users, rate, concurrency)[1])
    tried = _candidates(loaded, gpus, tp, router)
    kept = KeptRuns(out if out is not None else Path("out") / _file_name(loaded.name) / "plan")
    kept.prepare()

    def command(candidate: Candidate, replicas: int, load: float) -> str:
        settings = [*overrides, *candidate.settings(replicas)]
        words = ["headcount", "run", str(scenario), option, f"{load:g}"]
        words += ["--variant", variant] if variant is not None else []
        return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])

    progress = ProgressLine()
    try:
        with ends_by_signal(), progress.alive():
            found = make_plan(
                loaded, tried, request, simulate, command=command, jobs=_jobs(jobs), kept=kept, tell=progress.tell
            )
    except PlanInterruptedError as error:
        _print(loaded, error.plan, currency, as_json=as_json)
        raise typer.Exit(INTERRUPTED) from None
    _print(loaded, found, currency, as_json=as_json)
    if not found.holds:
        raise typer.Exit(1)


def _load_key(users: int | None, rate: float | None, concurrency: int | None) -> tuple[str, str, float]:
    """Returns the kind of workload, the key of its load, and the load."""
    from sim.errors import UserError

    options = {
        "--users": ("users", "workload.users", users),
        "--rate": ("open_loop", "workload.request_rate", rate),
        "--concurrency": ("closed_loop", "workload.max_concurrency", concurrency),
    }
    given = [(kind, key, load) for kind, key, load in options.values() if load is not None]
    if len(given) != 1:
        raise UserError(f"{', '.join(options)}: give the load that is planned for, one of them; got {len(given)}")
    return given[0]


def _load(path: Path, overrides: list[str], variant: str | None, given: tuple[str, str, float]) -> Scenario:
    """Reads the scenario at the load that is planned for; what the server is like may change with the plan."""
    from sim.errors import UserError
    from sim.scenario.load import load_scenario, override

    scenario = load_scenario(path, overrides, variant)
    kind, key, load = given
    if scenario.workload.kind != kind:
        raise UserError(f"{path}: the workload is of kind {scenario.workload.kind}; the load given is that of {kind}")
    return override(scenario, {key: load, "search": None})


def _check_peak(scenario: Scenario, request: Request, option: str, key: str) -> None:
    """Refuses a peak that cannot be simulated, before anything is."""
    from sim.errors import UserError
    from sim.scenario.load import override
    from sim.scenario.problems import ScenarioError

    try:
        override(scenario, {key: request.peak})
    except ScenarioError as error:
        factor = f"--peak-factor {request.peak_factor:g}"
        raise UserError(f"{option} {request.load:g} {factor}: at the peak: {error.problems[0].message}") from None


def _candidates(scenario: Scenario, gpus: str | None, tp: str | None, router: str | None) -> tuple[Candidate, ...]:
    from typing import get_args

    from sim.errors import UserError
    from sim.planning import candidates
    from sim.scenario.fleet import Router

    if router is not None and router not in get_args(Router):
        raise UserError(f"--router: unknown; got {router!r}; allowed: {', '.join(get_args(Router))}")
    try:
        degrees = [int(each) for each in tp.split(",")] if tp else []
    except ValueError:
        degrees = [0]
    if any(degree < 1 for degree in degrees):
        raise UserError(f"--tp: expected whole numbers from 1, separated by commas; got {tp!r}")
    names = [gpu_named("--gpus", each.strip()) for each in (gpus or "").split(",") if each.strip()]
    if gpus is not None and not names:
        raise UserError(f"--gpus: expected names of GPUs, separated by commas; got {gpus!r}")
    return candidates(scenario, names, degrees, router)


def _jobs(jobs: int | None) -> int:
    from sim.parallel import num_workers

    return num_workers(jobs, None)


def _file_name(name: str) -> str:
    from sim.cli.run import file_name

    return file_name(name)


def _print(scenario: Scenario, found: Plan, currency: str, *, as_json: bool) -> None:
    from reports.plan import plan_document, render_plan

    document = plan_document(scenario, found, currency)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    typer.echo(text if as_json else render_plan(document), nl=False)
