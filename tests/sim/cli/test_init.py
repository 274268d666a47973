"""`headcount init` writes a scenario that `headcount check` accepts, and never over a file of yours."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import typer
from typer.testing import CliRunner, Result

from sim.cli.check import check
from sim.cli.init import init
from sim.errors import UserError
from sim.scenario.source import read_source

APP = typer.Typer()
APP.command()(init)
APP.command()(check)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(APP, list(arguments))


def test_what_init_writes_is_sound() -> None:
    result = _run("init")
    assert result.exit_code == 0
    assert result.stdout == (
        "wrote scenario.yaml; next: headcount check scenario.yaml, then headcount run scenario.yaml\n"
    )
    assert _run("check", "scenario.yaml").exit_code == 0


def test_the_name_is_that_of_the_file() -> None:
    _run("init", "chat.yaml")
    assert read_source("chat.yaml").data["name"] == "chat"
    _run("init", "scenario.yaml")
    assert read_source("scenario.yaml").data["name"] == "my-team"


def test_a_file_that_is_there_stays_as_it_is_unless_forced() -> None:
    Path("mine.yaml").write_text("mine\n")
    result = _run("init", "mine.yaml")
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == "mine.yaml: already there; --force replaces it"
    assert Path("mine.yaml").read_text() == "mine\n"
    assert _run("init", "mine.yaml", "--force").exit_code == 0
    assert _run("check", "mine.yaml").exit_code == 0


def test_a_place_that_cannot_be_written_is_said() -> None:
    result = _run("init", "no/such/folder/x.yaml")
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == "no/such/folder/x.yaml: cannot be written: No such file or directory"


def test_the_schema_lies_beside_it_when_asked_for() -> None:
    assert _run("init", "chat.yaml", "--schema").exit_code == 0
    assert Path("chat.yaml").read_text().startswith("# yaml-language-server: $schema=./scenario.schema.json\n")
    jsonschema.validate(read_source("chat.yaml").data, json.loads(Path("scenario.schema.json").read_text()))
