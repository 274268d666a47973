"""`headcount compare`: the same requests on several kinds of server, side by side."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import typer
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from sim.cli.compare import compare
from sim.cli.run import run
from sim.errors import UserError
from sim.scenario.load import load_scenario, override
from sim.simulate import simulate

SCENARIO = """
name: tiny
server:
  kind: vllm
  version: "0.32"
  model: Qwen/Qwen2.5-7B-Instruct
  gpu: rtx-4090
  flags: {max_num_seqs: 32}
  ollama: {num_parallel: 2, num_ctx: 8192}
  static: {batch_size: 4, max_wait: 50ms}
workload:
  kind: users
  classes:
    - name: chat
      first_prompt_tokens: {lognormal: {median: 400, p95: 900}}
      next_prompt_tokens: 100
      output_tokens: {lognormal: {median: 80, p95: 200}}
      turns: 4
      think_time: {exponential: {mean: 8s}}
objectives: [ttft.p95 <= 1s, errors <= 1%]
search: {vary: users, from: 2, to: 24}
run: {duration: 60s, warm_up: 20s, seeds: 2}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


def invoke(command: object, path: Path, *arguments: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)  # type: ignore[type-var]
    return CliRunner().invoke(app, [str(path), "--jobs", "1", *arguments])


def test_a_search_for_each_kind_and_all_of_them_at_the_same_loads(scenario: Path) -> None:
    result = invoke(compare, scenario)
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert text.startswith("tiny: the same requests and objectives on 3 kinds of server\n")
    assert text.index("ollama 0.33: ") < text.index("vllm 0.32: ") < text.index("static: ")
    rows = {line[:26].strip(): line[26:].split() for line in text.splitlines() if line.strip()}
    assert rows[""] == ["ollama", "vllm", "static"]
    answers = rows["supported users"]
    assert answers[1:3] == ["at", "least"]  # vLLM: the whole ceiling
    assert 2 <= int(answers[0]) < 24
    assert "memory at no load" in rows
    assert text.count("All at ") == 2
    assert max(map(len, text.splitlines()[2:5])) < 200


def test_the_document_holds_the_result_of_each_kind(scenario: Path) -> None:
    result = invoke(compare, scenario, "--json", "--users", "6", "--kinds", "static,ollama")
    document = json.loads(result.stdout)
    assert [each["kind"] for each in document["kinds"]] == ["static", "ollama"]
    validator = Draft202012Validator(json.loads(files("sim.results").joinpath("run.schema.json").read_text()))
    for each in document["kinds"]:
        validator.validate(each["result"])
        assert each["result"]["server"]["kind"] == each["kind"]
        (point,) = each["same_loads"]
        assert point["load"] == 6
        assert each["kind"] in point
    static, ollama = (each["same_loads"][0] for each in document["kinds"])
    assert ollama["ollama"]["effective_parallel"] == 2
    assert static["static"]["kv_waste_share"] > 0.5


def test_one_kind_is_what_run_says(scenario: Path) -> None:
    """The comparison's result is that of `headcount run` with this kind."""
    compared = json.loads(invoke(compare, scenario, "--json", "--users", "5", "--kinds", "ollama").stdout)
    alone = json.loads(
        invoke(
            run, scenario, "--json", "--users", "5", "--set", "server.kind=ollama", "--set",
            "server.ollama.version='0.33'", "--set", "server.flags.max_model_len=32768",
        ).stdout
    )  # fmt: skip
    assert compared["kinds"][0]["result"]["points"] == alone["points"]


def test_every_kind_gets_the_same_requests(scenario: Path) -> None:
    """User 3's second prompt is the same, whoever answers and however fast."""
    base = override(load_scenario(scenario), {"server.flags.max_model_len": 32_768})
    sent: dict[str, dict[tuple[int, int], list[int]]] = {}
    for kind in ("vllm", "ollama", "static"):
        found: dict[tuple[int, int], list[int]] = {}
        for request in simulate(override(base, {"server.kind": kind}), seed=0, load=4).requests:
            found.setdefault((request.user_id, request.turn), []).append(request.num_prompt_tokens)
        sent[kind] = found
    for kind in ("ollama", "static"):
        num_compared = 0
        for key, prompts in sent[kind].items():
            both = min(len(prompts), len(sent["vllm"].get(key, [])))
            assert prompts[:both] == sent["vllm"].get(key, [])[:both]
            num_compared += both
        assert num_compared >= 4, "at least one of each user"


def test_a_kind_that_would_not_start_is_said_beside_the_others(scenario: Path) -> None:
    result = invoke(compare, scenario, "--users", "3", "--kinds", "vllm,ollama", "--set",
                    "server.ollama.num_parallel=64", "--set", "server.ollama.num_ctx=32768")  # fmt: skip
    assert result.exit_code == 1
    assert "  ollama: no result: ollama.num_parallel: 64 slots of 32,768 tokens do not fit: " in result.stdout
    assert "objectives" in result.stdout


def test_the_same_bytes_each_time(scenario: Path) -> None:
    first, second = (invoke(compare, scenario, "--users", "4") for _ in range(2))
    assert first.stdout_bytes == second.stdout_bytes


def test_ctrl_c_is_one_line(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.simulate.simulate", interrupt)
    result = invoke(compare, scenario)
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr == "interrupted: nothing is compared yet\n"


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ("olama", "--kinds: unknown kind 'olama'; did you mean 'ollama'?"),
        ("tgi", "--kinds: unknown kind 'tgi'; kinds: vllm, ollama, static"),
        ("vllm,vllm", "--kinds: vllm is named twice"),
        (",", "--kinds: names no kind; kinds: vllm, ollama, static"),
    ],
)
def test_unknown_kinds(scenario: Path, kinds: str, message: str) -> None:
    result = invoke(compare, scenario, "--kinds", kinds)
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == message
