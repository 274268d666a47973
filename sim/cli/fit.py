"""`headcount fit`: measurements in, a profile out, with a report of what to believe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.options import Jobs

if TYPE_CHECKING:
    from calibrate.fit import FitOptions
    from calibrate.replay_server import ServerChoice


def fit(  # noqa: PLR0917 - typer calls it, by name
    out: Annotated[Path, typer.Option(metavar="PROFILE.yaml", help="The profile to write.", show_default=False)],
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Step records; or request tables (CSV), `vllm bench serve` results and GuideLLM reports; or ladders "
            "of closed-loop totals (CSV); or one folder of operator timings.",
            show_default=False,
            metavar="DATA...",
        ),
    ] = None,
    server: Annotated[
        Path | None,
        typer.Option(metavar="FLAGS.yaml", help="The measured server: model, gpu, version, flags, KV blocks."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Its model, where the file does not say it.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Its GPU, where the file does not say it.")] = None,
    version: Annotated[str | None, typer.Option(help="Its vLLM release, where the file does not say it.")] = None,
    source: Annotated[str, typer.Option(help="Where the measurements come from.")] = "own measurement",
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="The client's cap on requests in flight. Default: the recordings'.")
    ] = None,
    length_spread: Annotated[
        float, typer.Option(min=0, max=1, help="A ladder's lengths: uniform within ± this share of the mean.")
    ] = 0.0,
    terms: Annotated[
        str | None, typer.Option(help="Terms to fit, by comma. Default: those that the data can tell apart.")
    ] = None,
    tile_tokens: Annotated[int, typer.Option(min=1, help="Round tokens up to tiles in the compute term.")] = 1,
    aiconfigurator: Annotated[
        bool,
        typer.Option(
            "--aiconfigurator", help="Without DATA: a prior from the kernel tables of aiconfigurator-core (an extra)."
        ),
    ] = False,
    leave_one_out: Annotated[bool, typer.Option(help="Predict each run from the others.")] = True,
    jobs: Jobs = None,
) -> None:
    """Fit a profile to measured steps or to measured requests, and say what to believe of it.

    The profile appears whole or not at all. The report lists each term with its error, what it was held out from, and
    what the data cannot tell.
    """
    from joblib import cpu_count

    from calibrate.fit import FitOptions, is_step_record
    from calibrate.fit import fit as fit_profile
    from sim.engine.profile import save_profile
    from sim.errors import UserError

    if out.suffix not in (".yaml", ".yml"):
        raise UserError(f"{out}: a profile's name ends in .yaml")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}")
    given = {"model": model, "gpu": gpu, "version": version}
    if aiconfigurator or not data:
        _save_prior(out, _server(server, given, None), aiconfigurator, data)
        return
    recorded = not data[0].is_dir() and is_step_record(data[0])
    choice = _server(server, given, data[0] if recorded else None)
    options = FitOptions(
        name=out.stem,
        source=source,
        terms=None if terms is None else tuple(term.strip() for term in terms.split(",")),
        max_concurrency=max_concurrency,
        length_spread=length_spread,
        leave_one_out=leave_one_out,
        jobs=jobs or cpu_count(),
    )
    if tile_tokens > 1:
        options = _tiled(options, choice, tile_tokens)
    outcome = fit_profile(data, choice, options, progress=lambda text: typer.echo(text, err=True))
    save_profile(outcome.profile, out)
    typer.echo("\n".join(outcome.report))
    typer.echo(f"profile written to {out}", err=True)


def _save_prior(out: Path, choice: ServerChoice, asked: bool, data: list[Path] | None) -> None:
    """Writes a profile that no measurement of a server is behind."""
    from calibrate.aiconfigurator import export
    from calibrate.fit import FitOptions
    from sim.engine.profile import save_profile
    from sim.errors import UserError

    if not asked:
        raise UserError("DATA: nothing to fit to; give measurements, or --aiconfigurator for a prior without any")
    if data:
        raise UserError(f"{data[0]}: --aiconfigurator makes a prior without measurements; give one or the other")
    outcome = export(choice, FitOptions(name=out.stem, source="aiconfigurator-core"))
    save_profile(outcome.profile, out)
    typer.echo("\n".join(outcome.report))
    typer.echo(f"profile written to {out}; it is a prior: predictions with it are marked uncalibrated", err=True)


def _server(file: Path | None, given: dict[str, str | None], record: Path | None) -> ServerChoice:
    """Returns what was measured, from the file, the options and what a step record says of itself."""
    from calibrate.replay_server import describe_server
    from sim.errors import UserError

    values: dict[str, Any] = {} if record is None else _recorded_server(record)
    values |= {key: value for key, value in given.items() if value is not None}
    missing = [key for key in ("model", "gpu") if key not in values]
    if missing and file is None:
        options = " and ".join(f"--{key}" for key in missing)
        raise UserError(f"which server was measured? give {options}, or a file with --server")
    return describe_server(values, file)


def _recorded_server(record: Path) -> dict[str, Any]:
    from calibrate.step_reader import read_steps

    known = read_steps(record).server
    names = {"model": "model", "vllm": "version", "tensor_parallel_size": "tensor_parallel_size"}
    values = {ours: known[theirs] for theirs, ours in names.items() if known.get(theirs) is not None}
    flags = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_prefix_caching", "block_size")
    values["flags"] = {flag: known[flag] for flag in flags if known.get(flag) is not None}
    return values


def _tiled(options: FitOptions, choice: ServerChoice, tile_tokens: int) -> FitOptions:
    from dataclasses import replace

    from calibrate.fit_terms import model_form

    return replace(options, form=replace(model_form(choice.plan()), tile_tokens=tile_tokens))
