"""The command line: which commands there are, and what happens to errors."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from sim.cli.calibrate import calibrate
from sim.cli.check import check
from sim.cli.check_schedule import check_schedule
from sim.cli.compare import compare
from sim.cli.fit import fit
from sim.cli.fit_ollama import fit_ollama
from sim.cli.import_log import import_log
from sim.cli.init import init
from sim.cli.plan import plan
from sim.cli.replay import replay
from sim.cli.report import report
from sim.cli.run import run
from sim.cli.search import search
from sim.cli.serve_metrics import serve_metrics
from sim.cli.signals import INTERRUPTED, READER_GONE
from sim.cli.size import size
from sim.cli.spot_check import spot_check
from sim.cli.sweep import sweep
from sim.cli.usage import in_one_line
from sim.cli.what_if import what_if
from sim.errors import UserError


class _Commands(TyperGroup):
    """The commands; what is wrong with a command line is one line, and so is Ctrl-C in one that says nothing of it."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            with in_one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted before the end", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read stdout has read enough (`| head -1`); what is still in its buffer must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(READER_GONE) from None


app = typer.Typer(
    name="headcount",
    cls=_Commands,
    help="How many users does this LLM server support?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of the help: the main job, what surrounds it, then the real server.
app.command()(run)
app.command()(check)
app.command()(init)
app.command()(size)
app.command()(sweep)
app.command()(search)
app.command(name="what-if")(what_if)
app.command()(compare)
app.command()(plan)
app.command()(report)
app.command(name="serve-metrics")(serve_metrics)
app.command()(calibrate)
app.command()(fit)
app.command(name="fit-ollama")(fit_ollama)
app.command()(replay)
app.command(name="spot-check")(spot_check)
app.command(name="import-log")(import_log)
app.command(name="check-schedule")(check_schedule)


@app.callback(invoke_without_command=True)
def _headcount(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
) -> None:
    if version:
        from sim import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Runs the command line; bad input and a full disk are one line on stderr and exit 2."""
    try:
        app()
    except UserError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        typer.echo(f"{error.filename or 'the output'}: cannot be written: {error.strerror}", err=True)
        sys.exit(2)
