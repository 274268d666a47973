"""Folders of a sweep and of a spot check, as their commands write them."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from calibrate.spot_store import write_spot_check
from sim.cli.sweep import sweep
from tests.calibrate.test_spot_check import _check as made_check
from tests.reports import sample


def make_sweep(folder: Path) -> Path:
    """Users by seats, one combination of which cannot be simulated."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(sweep)
    arguments = [str(sample.SCENARIO), "--vary", "users=8,24,40", "--vary", "server.flags.max_num_seqs=32,2,4096",
                 "--seeds", "2", "--jobs", "1", "--set", "run.duration=60s", "--out", str(folder)]  # fmt: skip
    assert CliRunner().invoke(app, arguments).exit_code == 1
    return folder


def make_check(folder: Path, predicted: float = 1.06, tolerance: float = 10.0) -> Path:
    """A server that differs from itself by 2 %, predicted so many times as slow."""
    check = made_check(predicted, 0.99, 1.01, preemptions=(3.0, 4.0), simulated=3)
    write_spot_check(check, check.verdict(tolerance), folder)
    return folder
