"""`headcount fit-ollama`: a profile from the timing fields of an Ollama server's responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def fit_ollama(  # noqa: PLR0917 - typer calls it, by name
    responses: Annotated[Path, typer.Argument(help="Responses, one JSON object a line.", show_default=False)],
    model: Annotated[str, typer.Option(help="The model, as Ollama names it.")],
    gpu: Annotated[str, typer.Option(help="The GPU, as scenarios name it.")],
    ollama_version: Annotated[str, typer.Option("--version", help="The release of Ollama.")],
    num_batch: Annotated[int, typer.Option(min=1, help="num_batch of the server.")] = 512,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The profile. Default: the responses' name, with .yaml.")
    ] = None,
) -> None:
    """Fit a profile to responses of Ollama that were asked for one at a time.

    Keep the last object of each response of /api/generate or /api/chat, one a line: `curl -s … -d '{"stream": false,
    …}' >> responses.jsonl`. Use prompts of different lengths that do not begin alike. A scenario takes the profile with
    server.ollama.profile.
    """
    from calibrate import ollama_fit
    from sim.engine.ollama.profile import MeasuredOllama, save_ollama_profile

    path = out or responses.with_suffix(".yaml")
    profile = ollama_fit.fit_ollama(
        ollama_fit.read_responses(responses),
        MeasuredOllama(model=model, gpu=gpu, ollama_version=ollama_version),
        name=path.stem.replace(" ", "-"),
        source=f"responses of the server, {responses.name}",
        num_batch=num_batch,
    )
    save_ollama_profile(profile, path)
    typer.echo(f"{path}: fitted to {profile.data[0]}")
    for table in profile.errors:
        worst = max(table.rows, key=lambda row: abs(row.error_percent))
        typer.echo(
            f"  {table.run}: {worst.metric} {worst.statistic} off by {worst.error_percent:+.1f} % at worst "
            f"({worst.measured:.3g} measured, {worst.predicted:.3g} predicted)"
        )
    for key, value in profile.step_time:
        remark = getattr(value, "remark", None)
        if remark:
            typer.echo(f"  {key}: {remark}")
