"""`headcount compare`: the same users on Ollama, vLLM and static batching, side by side."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sim.cli.options import AsJson, Concurrency, Jobs, Rate, ScenarioFile, Seed, Seeds, Sets, Users, Variant
from sim.cli.run import Progress, at_one_load, run_overrides
from sim.cli.signals import INTERRUPTED, ends_by_signal

_DEFAULT_KINDS = "ollama,vllm,static"


def compare(  # noqa: PLR0917 - typer calls it, by name
    scenario: ScenarioFile,
    kinds: Annotated[str, typer.Option(help="Kinds of server, separated by commas.")] = _DEFAULT_KINDS,
    users: Users = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    set_: Sets = None,
    variant: Variant = None,
    seeds: Seeds = None,
    seed: Seed = None,
    as_json: AsJson = False,
    jobs: Jobs = None,
) -> None:
    """Put the same requests to several kinds of server, and print how many users each supports.

    Settings of each kind are in the scenario's server: flags for vllm, and the sections ollama and static. Exits with
    0 when every kind supports some load (a search) or the one load, 1 when not all do, 2 on bad input, 130 after
    Ctrl-C (or the TERM signal).
    """
    from joblib import cpu_count

    from reports.kinds import build_comparison, render_comparison
    from sim.capacity import SearchInterruptedError
    from sim.capacity.kinds import compare_kinds
    from sim.cli.checked import load_checked
    from sim.simulate import simulate

    chosen = _kinds(kinds)
    loaded = load_checked(scenario, [*(set_ or []), *run_overrides(seeds, seed)], variant)
    loaded = at_one_load(loaded, scenario, users, rate, concurrency)
    progress = Progress()
    try:
        with ends_by_signal(), progress.alive():
            found = compare_kinds(loaded, chosen, simulate, jobs=jobs or cpu_count(), progress=progress.report)
    except (SearchInterruptedError, KeyboardInterrupt):
        typer.echo("interrupted: nothing is compared yet", err=True)
        raise typer.Exit(INTERRUPTED) from None
    document = build_comparison(found)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    typer.echo(text if as_json else render_comparison(document), nl=False)
    if not all(each.result is not None and each.result.supported for each in found):
        raise typer.Exit(1)


def _kinds(text: str) -> list[str]:
    """Returns the kinds that `--kinds` names.

    Raises:
        UserError: an unknown one, one twice, or none.
    """
    from sim.capacity.kinds import KINDS
    from sim.errors import UserError
    from sim.scenario.explain import suggestion

    names = [name.strip() for name in text.split(",") if name.strip()]
    for index, name in enumerate(names):
        if name not in KINDS:
            raise UserError(f"--kinds: unknown kind {name!r}; {suggestion(name, KINDS, noun='kinds')}")
        if name in names[:index]:
            raise UserError(f"--kinds: {name} is named twice")
    if not names:
        raise UserError(f"--kinds: names no kind; kinds: {', '.join(KINDS)}")
    return names
