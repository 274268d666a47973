"""A fit to the timing fields of Ollama's responses finds the costs that made them."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from calibrate.ollama_fit import Timings, fit_ollama, read_responses
from sim.cli.fit_ollama import fit_ollama as command
from sim.engine.fitted import FittedModel, StepCoefficients
from sim.engine.ollama.profile import MeasuredOllama, load_ollama_profile
from sim.errors import UserError
from sim.records import OllamaResponse
from sim.scenario.model import Scenario
from sim.simulate import simulate
from sim.workload.random import random_stream
from tests.sim.engine.ollama.build import answers, ask, model, placed, serve

TRUE = StepCoefficients(
    floor_ns=7e6, token_ns=95e3, attention_pair_ns=3.0, decode_context_ns=55.0, request_ns=0.4e6
)  # fmt: skip
SERVER = MeasuredOllama(model="qwen2.5:7b", gpu="rtx-4090", ollama_version="0.33.3")


@cache
def measured(number: int = 60) -> list[OllamaResponse]:
    """Responses of a server with the true costs, asked one at a time with prompts and answers of all lengths."""
    draws = random_stream(0, "fit")
    prompts, outputs = draws.integers(10, 6000, number), draws.integers(5, 400, number)
    requests = [
        ask(i, at_ms=20_000 * i, prompt=int(p), output=int(o))
        for i, (p, o) in enumerate(zip(prompts, outputs, strict=True))
    ]
    one = model(placement=placed(num_ctx=8192), cost=FittedModel(TRUE, async_scheduling=False), keep_alive_ms=None)
    found = answers(serve(requests, [one]))
    return [found[i] for i in range(number)]


def lines(responses: list[OllamaResponse], noise: float = 0.0) -> str:
    draws, text = random_stream(1, "noise"), []
    for response in responses:
        fields = {key: value for key, value in asdict(response).items() if value}
        for key in ("prompt_eval_duration", "eval_duration"):
            fields[key] = round(fields[key] * (1 + noise * draws.standard_normal()))
        text.append(json.dumps({"model": "qwen2.5:7b", "done": True, **fields}))
    return "\n".join(text)


def test_the_costs_that_made_the_responses_are_found(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(lines(measured()))
    profile = fit_ollama(read_responses(path), SERVER, name="fit", source="test")
    costs = profile.step_time.model_dump(exclude_defaults=True)
    assert costs["per_token_us"] == pytest.approx(95, rel=0.01)
    assert costs["per_attention_pair_ns"] == pytest.approx(3.0, rel=0.02)
    assert costs["per_decode_context_token_ns"] == pytest.approx(55, rel=0.02)
    assert costs["floor_us"] + costs["per_request_us"] == pytest.approx(7400, rel=0.005)
    assert all(abs(row.error_percent) < 0.5 for table in profile.errors for row in table.rows)
    assert [table.held_out for table in profile.errors] == [False, True]


def test_noise_and_outliers_move_little(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    responses = [*measured()]
    text = lines(responses, noise=0.03).splitlines()
    slow = json.loads(text[7])
    text[7] = json.dumps({**slow, "eval_duration": slow["eval_duration"] * 5})
    path.write_text("\n".join(text))
    profile = fit_ollama(read_responses(path), SERVER, name="fit", source="test")
    held_out = next(table for table in profile.errors if table.held_out)
    assert all(abs(row.error_percent) < 5 for row in held_out.rows)


def test_loads_and_the_way_to_a_loaded_model() -> None:
    """A cold first request tells the load; warm ones what passes before the model works on them."""
    responses = [
        Timings(total=int(3e9) + 40_000_000 + 100_000_000, load=40_000_000, prompt_tokens=100, cached_tokens=0,
                prompt=100_000_000, output_tokens=101, eval=int(3e9))
        for _ in range(8)
    ]  # fmt: skip
    responses[0] = Timings(
        total=int(8e9), load=int(4.5e9), prompt_tokens=100, cached_tokens=0, prompt=100_000_000, output_tokens=101,
        eval=int(3e9),
    )  # fmt: skip
    profile = fit_ollama(responses, SERVER, name="fit", source="test")
    assert profile.load is not None
    assert profile.load.load_ms.value == 4500
    assert profile.client_latency.request_ms.value == 40
    assert "No response tells prompt tokens found in the cache" in profile.notes[1]


def test_equal_requests_leave_most_costs_unknown_and_the_profile_says_so() -> None:
    one = Timings(
        total=int(2e9), load=0, prompt_tokens=50, cached_tokens=0, prompt=int(1e8), output_tokens=20, eval=int(1e9)
    )
    profile = fit_ollama([one] * 10, SERVER, name="fit", source="test")
    assert "not identified by this data" in str(profile.step_time.model_dump())


def test_a_scenario_served_with_the_fitted_profile_takes_the_measured_times(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(lines(measured()))
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    arguments = [str(tmp_path / "r.jsonl"), "--model", "qwen2.5:7b", "--gpu", "rtx-4090", "--version", "0.33.3"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "fitted to 60 responses, sent one at a time" in result.output
    assert load_ollama_profile(tmp_path / "r.yaml").calibrated is True
    case = Scenario.model_validate(
        {
            "name": "case",
            "server": {
                "kind": "ollama", "model": "qwen2.5:7b", "gpu": "rtx-4090",
                "ollama": {"profile": "./r.yaml", "num_ctx": 8192, "version": "0.33.3"},
            },
            "workload": {
                "kind": "closed_loop", "num_requests": 3, "max_concurrency": 1,
                "classes": [{"name": "only", "prompt_tokens": 3000, "output_tokens": 200}],
            },
            "run": {"seeds": 1},
        }
    ).with_base_dir(tmp_path)  # fmt: skip
    run = simulate(case, seed=0)
    assert run.calibrated
    one = model(placement=placed(num_ctx=8192, num_batch=1024), cost=FittedModel(TRUE, async_scheduling=False))
    truth = answers(serve([ask(0, prompt=3000, output=200)], [one]))[0]
    assert run.ollama is not None
    found = run.ollama.responses[0]
    assert found.prompt_eval_duration == pytest.approx(truth.prompt_eval_duration, rel=0.02)
    assert found.eval_duration == pytest.approx(truth.eval_duration, rel=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line has the timing fields of a response: total_duration, load_duration, "),
        ('{"response": "Hi"}', "no line has the timing fields"),
        ('{"total_duration": 1,', "r.jsonl:1:22: not JSON: "),
        ("[1]", "r.jsonl:1:1: expected a JSON object, the last of a response; got '[1]'"),
        (
            '{"total_duration": 1, "eval_duration": "2s"}',
            "r.jsonl:1:1: eval_duration: a number of nanoseconds or tokens; got '2s'",
        ),
    ],
)
def test_bad_responses_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_responses(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_few_responses() -> None:
    with pytest.raises(UserError, match="2 of 2 responses have a prompt and two output tokens or more; a fit needs 6"):
        fit_ollama([Timings(10, 0, 1, 0, 1, 2, 1)] * 2, SERVER, name="x", source="x")


def test_the_documented_example_is_read(tmp_path: Path) -> None:
    """docs/api.md: 18 tokens in 52,479,709 ns are 343 tokens a second."""
    path = tmp_path / "r.jsonl"
    path.write_text(
        '{"model":"gemma3","created_at":"2025-10-26","response":"The sky…","done":true,"total_duration":174560334,'
        '"load_duration":101397084,"prompt_eval_count":11,"prompt_eval_cached_count":8,"prompt_eval_duration":13074791,'
        '"eval_count":18,"eval_duration":52479709}\n'
    )
    (found,) = read_responses(path)
    assert found.output_tokens / found.eval * 1e9 == pytest.approx(343, abs=0.1)
    assert (found.prompt_tokens, found.cached_tokens) == (11, 8)
    assert found.rest == 174_560_334 - 101_397_084 - 13_074_791 - 52_479_709
    assert np.isclose(found.rest / 1e6, 7.6, atol=0.05)
