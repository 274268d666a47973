"""`headcount serve-metrics`: plays a run for Prometheus to scrape, in real or accelerated time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve_metrics(
    run: Annotated[Path, typer.Argument(help="A folder written by `headcount run --out`.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")] = 8000,
    speed: Annotated[float, typer.Option(min=1e-3, help="Seconds of the run a second.")] = 1.0,
    load: Annotated[float | None, typer.Option(help="The run's load. Default: the answer's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Its seed. Default: the first.")] = None,
) -> None:
    """Answer scrapes of http://127.0.0.1:PORT/metrics as the simulated server would have, until Ctrl-C.

    The run starts with the first scrape and stays at its end.
    """
    from reports.metrics_server import metrics_server
    from reports.source import Source
    from reports.vllm_metrics import vllm_metrics
    from sim.errors import UserError

    source = Source.read(run)
    chosen = source.chosen_run(source.shown_load if load is None else load, seed)
    try:
        server = metrics_server(vllm_metrics(chosen, source.document), port=port, speed=speed)
    except OSError as error:
        raise UserError(f"--port: {port} cannot be opened: {error.strerror or error}; choose another one") from None
    with server:
        length_s = chosen.end_ns / 1e9 / speed
        typer.echo(f"http://127.0.0.1:{server.server_port}/metrics plays {length_s:.0f} s; Ctrl-C ends it", err=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit from None
