"""`headcount import-log`: the server section of a scenario, from a vLLM log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_log(
    log: Annotated[Path, typer.Argument(help="Log of `vllm serve`, from its start.", show_default=False)],
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="The GPU; a log does not name it.", show_default=False)
    ] = None,
    iterations: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the engine's iteration lines (--enable-logging-iteration-details) there, as CSV.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the server section of a scenario, as a vLLM log describes it: version, flags, weights, KV cache.

    Exits with 0, or 2 when the file is no log of a vLLM server.
    """
    from calibrate.files import write_whole
    from calibrate.server_log import iterations_csv, read_iterations, read_server_log
    from calibrate.server_section import section_from_log
    from sim.hardware import find_gpu

    gpu_name = None if gpu is None else find_gpu(gpu).name
    section = section_from_log(read_server_log(log), log.name, gpu_name)
    if iterations is not None:
        found = read_iterations(log)
        write_whole(iterations, "".join(f"{line}\n" for line in iterations_csv(found)))
        typer.echo(f"{len(found)} iterations written to {iterations}", err=True)
    typer.echo(section.to_yaml(), nl=False)
