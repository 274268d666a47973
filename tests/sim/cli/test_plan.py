"""`headcount plan`: deployments on stdout, an exit code that says whether one holds, a command for each row."""

import json
import re
import shlex
from importlib.resources import files
from pathlib import Path

import pytest
import typer
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from sim.cli.plan import plan
from sim.cli.run import run
from sim.errors import UserError

SCENARIO = """
name: tiny
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090, flags: {max_model_len: 8192, max_num_seqs: 8}}
workload:
  kind: users
  classes:
    - name: chat
      first_prompt_tokens: 500
      next_prompt_tokens: 100
      output_tokens: 100
      turns: 4
      think_time: {exponential: {mean: 5s}}
objectives: [ttft.p95 <= 1s, errors <= 1%]
search: {vary: users, from: 4, to: 64}
run: {duration: 40s, warm_up: 10s, seeds: 2}
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # finished runs are kept in out/
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


def invoke(path: Path, *arguments: str, command: object = plan) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)  # type: ignore[type-var]
    return CliRunner().invoke(app, [str(path), "--jobs", "1", *arguments])


def fails(path: Path, *arguments: str) -> str:
    result = invoke(path, *arguments)
    assert isinstance(result.exception, UserError), result.output
    assert result.stdout == ""
    return str(result.exception)


def test_the_cheapest_deployments_that_hold(scenario: Path) -> None:
    result = invoke(
        scenario, "--users", "60", "--gpus", "rtx-4090,t4,h100", "--tp", "1", "--price", "rtx-4090=0.4",
        "--price", "h100=3", "--currency", "EUR",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "tiny: 60 users, 78 at the peak (factor 1.3); with one replica lost, 60 must still hold" in result.stdout
    table = [line.split() for line in result.stdout.splitlines() if "UNCALIBRATED" in line]
    assert [row[2] for row in table] == ["rtx-4090", "h100-80gb"]
    assert [float(row[0]) for row in table] == [0.4 * int(table[0][1]), 3.0 * int(table[1][1])]
    assert "  t4: does not start: " in result.stdout
    assert "step times are uncalibrated" in result.stdout


def test_prices_that_are_missing_and_prices_that_are_not_used_are_said(scenario: Path) -> None:
    arguments = ("--users", "40", "--gpus", "rtx-4090,h100", "--tp", "1", "--max-replicas", "8")
    some = invoke(scenario, *arguments, "--price", "h100=3", "--price", "l4=0.5").stdout
    assert "  no price of rtx-4090: listed last, by number of GPUs; give --gpu-price GPU=PRICE\n" in some
    assert "  prices not used, for no such GPU is tried (--gpus): l4\n" in some
    none = invoke(scenario, *arguments, "--price", "l4=0.5").stdout
    assert "  no prices: ordered by number of GPUs; give --gpu-price GPU=PRICE for each (of one GPU, an hour)\n" in none
    every = invoke(scenario, *arguments, "--price", "h100=3", "--price", "rtx-4090=0.5").stdout
    assert "no price" not in every
    assert "prices not used" not in every
    assert "the cheapest first" in every
    assert "the fewest GPUs first" in none


def test_as_json_it_fits_its_schema_and_the_same_command_gives_the_same_bytes(scenario: Path) -> None:
    arguments = ("--users", "40", "--gpus", "rtx-4090,t4", "--tp", "1,2", "--json")
    first, second = invoke(scenario, *arguments), invoke(scenario, *arguments, "--out", "elsewhere")
    assert first.stdout == second.stdout
    document = json.loads(first.stdout)
    Draft202012Validator(json.loads(files("sim.results").joinpath("plan.schema.json").read_text())).validate(document)
    assert document["holds"] is True
    assert [row["price_per_hour"] for row in document["deployments"]] == [None] * 4
    assert {row["tensor_parallel_size"] for row in document["deployments"]} == {1, 2}


def test_each_row_can_be_run_alone_and_says_the_same(scenario: Path) -> None:
    document = json.loads(invoke(scenario, "--users", "40", "--tp", "1", "--json").stdout)
    (row,) = document["deployments"]
    program, verb, path, *arguments = shlex.split(row["command"])
    assert (program, verb, path) == ("headcount", "run", str(scenario))
    alone = json.loads(invoke(scenario, *arguments, "--json", command=run).stdout)
    assert alone["server"]["replicas"] == row["replicas"]
    (point,) = alone["points"]
    assert point["load"] == row["at_peak"]["load"]
    (nearest,) = [each for each in point["objectives"] if each["objective"] == row["at_peak"]["nearest"]]
    assert nearest["value"] == row["at_peak"]["value"]
    assert point["objectives_met"] is True


def test_where_nothing_holds_the_exit_code_is_1(scenario: Path) -> None:
    result = invoke(scenario, "--users", "40", "--objectives", "ttft.p95 <= 1ms")
    assert result.exit_code == 1
    assert result.stdout.startswith("nothing holds: tiny")
    assert re.search(r"rtx-4090: supports not even the smallest load: ttft\.p95 <= 1ms breaks", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the load that is planned for, one of them; got 0"),
        (["--users", "5", "--rate", "2"], "got 2"),
        (["--rate", "2"], "the workload is of kind users; the load given is that of open_loop"),
        (["--users", "5", "--gpus", "h1000"], "--gpus: unknown GPU 'h1000'; did you mean 'h100-80gb'"),
        (["--users", "5", "--gpus", ","], "--gpus: expected names of GPUs, separated by commas; got ','"),
        (["--users", "5", "--gpu-price", "h1000=2"], "--gpu-price: unknown GPU 'h1000'; did you mean 'h100-80gb'"),
        (["--users", "5", "--gpu-price", "l4=inf"], "--gpu-price l4=inf: expected a price of an hour, at least 0"),
        (["--users", "5", "--price", "h100"], "--gpu-price h100: expected a price of an hour, at least 0"),
        (["--users", "5", "--price", "h100=-1"], "--gpu-price h100=-1: expected a price of an hour, at least 0"),
        (["--users", "5", "--price", "2"], "--gpu-price 2: expected a price of an hour, at least 0, as in h100=2.5"),
        (["--users", "5", "--tp", "two"], "--tp: expected whole numbers from 1, separated by commas; got 'two'"),
        (["--users", "5", "--tp", "1,3"], "--tp 3: Total number of attention heads (28) must be divisible by tensor"),
        (["--users", "5", "--set", "server.model=foo"], "model: unknown model 'foo'; `headcount size --list-models`"),
        (["--users", "5", "--set", "server.profile=foo"], "profile 'foo': no shipped profile has this name; known: "),
        (
            ["--users", "900000"],
            "--users 900000 --peak-factor 1.3: at the peak: must be at most 1000000; got 1170000",
        ),
        (["--users", "5", "--router", "best"], "--router: unknown; got 'best'; allowed: round_robin"),
        (["--users", "5", "--objectives", "fast"], "objectives"),
    ],
)
def test_bad_input_is_one_line(scenario: Path, arguments: list[str], message: str) -> None:
    assert message in fails(scenario, *arguments)
