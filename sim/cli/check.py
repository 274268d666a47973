"""`headcount check`: is this scenario sound? Nothing is simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.options import Sets

if TYPE_CHECKING:
    from sim.scenario.model import Scenario
    from sim.scenario.problems import Problem


def check(
    scenarios: Annotated[list[Path], typer.Argument(metavar="SCENARIO...", help="Scenario files.", show_default=False)],
    set_: Sets = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Check this variant alone; default: the file and all of them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a file.")] = False,
) -> None:
    """Check scenarios without running them.

    Prints one line a file that is sound, or on stderr one line for each thing that is wrong. Exits with 0 if all are
    sound, 2 if not.
    """
    all_sound = True
    for path in scenarios:
        scenario, problems = _check_file(path, set_ or [], variant)
        all_sound &= not problems
        if as_json:
            typer.echo(json.dumps(_row(path, scenario, problems), ensure_ascii=False))
        elif scenario is None or problems:
            for problem in problems:
                typer.echo(str(problem), err=True)
        else:
            typer.echo(f"ok {path}: {_summary(scenario, variant)}")
    if not all_sound:
        raise typer.Exit(2)


def _check_file(path: Path, overrides: list[str], variant: str | None) -> tuple[Scenario | None, list[Problem]]:
    """Returns the scenario when it could be read, and the problems of the file and of its variants, each once."""
    from sim.cli.checked import load_checked
    from sim.scenario.problems import ScenarioError

    try:
        scenario = load_checked(path, overrides, variant)
    except ScenarioError as error:
        return None, list(error.problems)
    problems: list[Problem] = []
    for name in () if variant else scenario.variants:
        try:
            load_checked(path, overrides, name)
        except ScenarioError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    return scenario, problems


def _summary(scenario: Scenario, variant: str | None) -> str:
    """Returns what was checked, in a few words."""
    server = scenario.server
    gpus = f"{server.num_gpus}x {server.gpu}" if server.num_gpus > 1 else server.gpu
    parts = [f"{server.model} on {gpus}"]
    if scenario.search:
        parts.append(f"{scenario.search.vary} {scenario.search.from_:g} to {scenario.search.to:g}")
    if scenario.objectives:
        parts.append(", ".join(objective.text for objective in scenario.objectives))
    if scenario.variants and not variant:
        parts.append(f"variants {', '.join(scenario.variants)}")
    return "; ".join(parts)


def _row(path: Path, scenario: Scenario | None, problems: list[Problem]) -> dict[str, Any]:
    from sim.scenario.model import scenario_hash

    return {
        "file": str(path),
        "ok": not problems,
        "name": scenario.name if scenario else None,
        "hash": scenario_hash(scenario) if scenario else None,
        "variants": list(scenario.variants) if scenario else [],
        "problems": [{"where": problem.where, "key": problem.key, "message": problem.message} for problem in problems],
    }
