"""`headcount calibrate`: a profile of a running server, in minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.progress import ProgressLine
from sim.cli.signals import INTERRUPTED, ends_by_signal

if TYPE_CHECKING:
    from calibrate.live_profile import LiveProfile
    from calibrate.observe import Limits, Observation


def calibrate(  # noqa: PLR0917 - typer calls it, by name
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="A running server, such as http://127.0.0.1:8000.")
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Start this server ('vllm serve …') with the recorder, and stop it afterwards."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The served model's name.")] = None,
    steps: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the server's recorder writes, where it is on.")
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="The server's GPU, for the profile.")] = "cpu",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the profile.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the records and the profile.")] = Path(
        "out/calibration"
    ),
    max_requests: Annotated[int, typer.Option(min=5, help="Requests sent at most.")] = 1_000,
    max_time: Annotated[float, typer.Option(min=5, help="Seconds of sending at most.")] = 240.0,
    max_concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight, in the largest closed loop.")] = 32,
) -> None:
    """Send a short plan of requests to a live vLLM, and fit a profile to what it did.

    The plan takes a few minutes and ends with a burst that saturates the server; Ctrl-C ends it early, and what was
    found by then is kept. With the recorder on (always with --serve) the profile is fitted to the engine's own steps.
    Exits with 0 when a profile was written, 2 on bad input, 130 after Ctrl-C (or the TERM signal).
    """
    from calibrate.observe import Limits
    from sim.hardware import find_gpu

    gpu_name = find_gpu(gpu).name
    limits = Limits(max_requests, max_time, max_concurrency)
    try:
        with ends_by_signal():
            observation = _observation(base_url, serve, model, limits=limits, out=out, steps=steps)
            _write_profile(observation, name, gpu_name, out)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: no profile is written; what was found by then is in {out}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if observation.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _observation(
    base_url: str | None, serve: str | None, model: str | None, *, limits: Limits, out: Path, steps: Path | None
) -> Observation:
    """Observes the server that runs, or one that is started for it.

    Raises:
        UserError: both, or neither; or the server does not answer as it should.
    """
    from sim.errors import UserError

    if serve is not None and base_url is None:
        with _served(serve, out) as (url, recorded):
            return _observe(url, model, limits, out, recorded)
    if base_url is None or serve is not None:
        raise UserError("give one of --base-url (a running server) and --serve (a command that starts one)")
    return _observe(base_url, model, limits, out, steps)


@contextmanager
def _served(command: str, out: Path) -> Iterator[tuple[str, Path]]:
    """Runs a server with the recorder for the time of a `with`; yields its URL and its record."""
    import shlex

    from calibrate.live.server import LiveServer, recorded_command, recording_environment, url_of

    words = recorded_command(shlex.split(command))
    steps, log = out / "engine-steps.jsonl", out / "server.log"
    out.mkdir(parents=True, exist_ok=True)
    steps.unlink(missing_ok=True)
    typer.echo(f"starting the server; its log is {log}", err=True)
    with LiveServer(words, log, base_url=url_of(words), environment=recording_environment(steps)) as server:
        yield server.base_url, steps


def _observe(base_url: str, model: str | None, limits: Limits, out: Path, steps: Path | None) -> Observation:
    import asyncio

    from calibrate.http_client import Endpoint
    from calibrate.observe import observe

    line = ProgressLine(f"asking {base_url}")
    with line.alive():
        return asyncio.run(observe(Endpoint.of(base_url, model), limits, out, steps=steps, report=line.tell))


def _write_profile(observation: Observation, name: str | None, gpu: str, out: Path) -> None:
    from calibrate.live_report import calibration_report
    from sim.engine.profile import save_profile
    from sim.errors import UserError

    if observation.stopped is not None:
        typer.echo(f"stopped early: {observation.stopped}; what was found is used", err=True)
    try:
        made = _made(observation, name, gpu, out)
    except UserError as error:
        if observation.stopped != "interrupted":
            raise
        typer.echo(f"no profile is written: {error}", err=True)
        return
    path = out / "profile.yaml"
    save_profile(made.profile, path)
    typer.echo(calibration_report(made, observation))
    typer.echo(f"profile written to {path}", err=True)


def _made(observation: Observation, name: str | None, gpu: str, out: Path) -> LiveProfile:
    from calibrate.live_profile import make_profile

    served, line = observation.model, ProgressLine("fitting")
    with line.alive():
        return make_profile(
            observation,
            out,
            name=name or _profile_name(served.name, gpu),
            model=served.root or served.name,
            gpu=gpu,
            progress=line.tell,
        )


def _profile_name(model: str, gpu: str) -> str:
    """Returns a name made of the model's and the GPU's, with letters that a profile's name may have."""
    import re

    return re.sub(r"[^a-z0-9.]+", "-", f"{model.rsplit('/', 1)[-1]}-{gpu}".lower()).strip("-.")
