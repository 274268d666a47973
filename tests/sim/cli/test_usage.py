"""A command line that cannot be read is one line on stderr, with what was given and where to look."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sim.cli.app import app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["size", "--tp", "0"], "--tp: must be at least 1; got '0'; `headcount size -h` explains"),
        (["size", "--tp", "two"], "--tp: expected a whole number; got 'two'; `headcount size -h` explains"),
        (
            ["size", "--weights-gib", "nan"],
            "--weights-gib: must be at least 0; got 'nan'; `headcount size -h` explains",
        ),
        (["plan", "x.yaml", "--peak-factor", "1001"], "--peak-factor: must be at most 1000; got '1001'"),
        (["report", "x", "--format", "docx"], "--format: 'docx' is not one of 'html', 'md'"),
        (["run"], "Missing argument 'scenario'; `headcount run -h` explains"),
        (["runn", "x.yaml"], "No such command 'runn'. Did you mean 'run'?; `headcount -h` explains"),
        (["run", "x.yaml", "--user", "3"], "No such option: --user (Possible options: --seed, --set, --users)"),
        (["run", "x.yaml", "--users"], "Option '--users' requires an argument"),
        (["--user"], "No such option: --user"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments, prog_name="headcount")
    assert result.exit_code == 2
    assert not result.stdout
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_without_arguments_the_help_is_shown() -> None:
    result = CliRunner().invoke(app, [], prog_name="headcount")
    assert result.exit_code == 2
    assert "Commands:" in result.output
