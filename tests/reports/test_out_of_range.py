"""A prediction beyond the data of its profile says so, wherever it is shown, once and at its worst."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sim.cli.compare import compare
from sim.cli.replay import replay
from sim.cli.report import report
from sim.cli.run import run
from sim.cli.sweep import sweep
from sim.engine.profile import ValidUpTo, load_profile, save_profile

SCENARIO = """
name: tiny
server: {kind: vllm, model: Qwen/Qwen3-14B, gpu: h100, profile: ./small.yaml, flags: {max_model_len: 8192}}
workload:
  kind: users
  classes:
    - {name: chat, first_prompt_tokens: 500, next_prompt_tokens: 100, output_tokens: 40, turns: 4, think_time: 3s}
objectives: [tpot.p95 <= 16ms]
search: {vary: users, from: 8, to: 16}
run: {duration: 20s, warm_up: 5s, seeds: 2}
"""
CASES: list[tuple[Callable[..., Any], list[str]]] = [
    (run, ["s.yaml", "--users", "12", "--jobs", "1"]),
    (run, ["s.yaml", "--jobs", "1", "--out", "o"]),
    (report, ["o", "--format", "md", "--no-what-if"]),
    (report, ["o", "--format", "json", "--no-what-if"]),
    (report, ["o", "--format", "html", "--no-what-if", "--out", "report.html"]),
    (compare, ["s.yaml", "--kinds", "vllm", "--users", "12", "--jobs", "1"]),
    (sweep, ["s.yaml", "--vary", "users=12,16", "--jobs", "1", "--out", "sweep"]),
    (replay, ["r.csv", "--profile", "./small.yaml"]),
    (replay, ["r.csv", "--profile", "./small.yaml", "--json"]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("range")
    profile = load_profile("qwen3-14b-h100")
    save_profile(profile.model_copy(update={"valid_up_to": ValidUpTo(num_tokens=100)}), path / "small.yaml")
    (path / "s.yaml").write_text(SCENARIO)
    rows = "".join(f"{number / 10},500,40\n" for number in range(30))
    (path / "r.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    return path


def test_every_output_says_so_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for command, arguments in CASES:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(command)
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code in (0, 1), result.output
        text = (folder / "report.html").read_text() if "report.html" in arguments else result.stdout
        said = re.findall(r"profile qwen3-14b-h100: steps of up to (\d+) tokens were priced, but the data", text)
        times = 2 if "--json" in arguments else 1  # replay's has them under `out_of_range` too
        assert len(said) == times, (command.__name__, arguments, said)
        assert int(said[0]) > 100
