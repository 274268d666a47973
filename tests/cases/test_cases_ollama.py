"""Questions 22 to 24 of real Ollama servers, what their users observe, and where vLLM overtakes them.

Sources: github.com/ollama/ollama (issues on MAX_QUEUE and 503, server/sched.go), a benchmark on an RTX 4090 with
default settings, and the Banterhearts reports TR128 to TR132 (chimeraforge.vercel.app): Ollama and vLLM under
closed-loop agents on one RTX 4080 Laptop GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.capacity import Point
from sim.capacity.diagnosis import diagnose
from sim.records import Outcome, RunRecord
from sim.results.metrics import RunMetrics, summarize
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import S, one_class, write_profile


def write_ollama_profile(folder: Path, *, client_latency: dict[str, float] | None = None, **step_time: Any) -> Path:
    """Writes an Ollama profile of kind `fitted` with these keys, and returns the folder."""
    profile = {
        "format": 1, "kind": "ollama", "name": "stated", "calibrated": "prior", "date": "2026-01-01",
        "source": "the numbers of the case", "data": ["the numbers of the case"],
        "server": {"model": "qwen2.5:7b", "gpu": "rtx-4090", "ollama_version": "0.33"},
        "step_time": {"kind": "fitted", **step_time},
        "client_latency": client_latency or {},
    }  # fmt: skip
    text = json.dumps(profile, indent=1).replace('"2026-01-01"', "2026-01-01")
    (folder / "ollama.yaml").write_text(text, encoding="utf-8")
    return folder


def ollama(folder: Path, workload: dict[str, Any], objectives: tuple[str, ...] = (), **settings: Any) -> Scenario:
    """Returns a scenario served by Ollama with the profile of the folder, if it has one."""
    if (folder / "ollama.yaml").exists():
        settings = {"profile": "./ollama.yaml", **settings}
    data = {
        "name": "case",
        "server": {"kind": "ollama", "model": "qwen2.5:7b", "gpu": "rtx-4090", "ollama": settings},
        "workload": workload,
        "objectives": list(objectives),
        "run": {"seeds": 1},
    }
    return Scenario.model_validate(data).with_base_dir(folder)


def burst(number: int, prompt: int = 200, output: int = 20) -> dict[str, Any]:
    classes = one_class(prompt, output)
    return {"kind": "open_loop", "arrivals": "all_at_once", "num_requests": number, "classes": classes}


def loop(number: int, concurrency: int, prompt: Any = 1, output: Any = 61, **rest: Any) -> dict[str, Any]:
    classes = one_class(prompt, output)
    return {
        "kind": "closed_loop", "num_requests": number, "max_concurrency": concurrency, "classes": classes, **rest
    }  # fmt: skip


def measured(case: Scenario, seed: int = 0) -> tuple[RunRecord, RunMetrics]:
    run = simulate(case, seed=seed)
    return run, summarize(run, case)


def rejected(run: RunRecord) -> int:
    return sum(request.outcome is Outcome.REJECTED for request in run.requests)


# ---- 22 ----


@pytest.mark.parametrize("version", ["0.33", "0.11.5", "0.11.4", "0.5.13"])
def test_case_22_max_queue_is_ignored_for_a_loaded_model(tmp_path: Path, version: str) -> None:
    """However many wait: they wait for a slot, whose queue has no limit. Older releases hand over at once, too."""
    run, metrics = measured(ollama(tmp_path, burst(300), version=version, max_queue=5, num_parallel=1))
    assert rejected(run) == 0
    assert metrics.total.num_finished == 300


# ---- 23 ----


@pytest.mark.parametrize("version", ["0.5.13", "0.33"])
def test_case_23_of_1319_requests_at_a_cold_model_806_are_turned_away_at_once(tmp_path: Path, version: str) -> None:
    """1 is in the scheduler's hands, 512 wait, 1319 - 1 - 512 = 806 get 503 within 42 to 46 ms."""
    write_ollama_profile(tmp_path, client_latency={"request_ms": 22, "response_ms": 22}, floor_us=1000)
    run, metrics = measured(ollama(tmp_path, burst(1319), version=version, warm=False))
    assert (rejected(run), metrics.total.num_finished) == (806, 513)
    assert {request.finish_ns / S for request in run.requests if request.outcome is Outcome.REJECTED} == {0.044}


def test_case_23_more_get_in_when_the_queue_drains_before_they_come(tmp_path: Path) -> None:
    """The count is N - 1 - MAX_QUEUE plus those that the loop has taken meanwhile: after the load, all of them."""
    workload = {
        "kind": "open_loop", "arrivals": "constant", "request_rate": 200, "num_requests": 1319,
        "classes": one_class(200, 1),
    }  # fmt: skip
    # 6.6 s of arrivals; the load takes 5 s: by then 1000 have come, of which 513 are in.
    run, _ = measured(ollama(tmp_path, workload, version="0.5.13", warm=False, load_time="5s"))
    assert rejected(run) == pytest.approx(1000 - 513, abs=2)


def test_case_23_is_diagnosed_as_a_cold_model(tmp_path: Path) -> None:
    case = ollama(tmp_path, burst(1319), ("errors <= 1%",), version="0.5.13", warm=False)
    metrics = measured(case)[1]
    found = diagnose(Point.of(None, [0], [metrics], case.objectives))
    assert found is not None
    assert found.resource == "model_loads"
    assert "806 requests were answered 503 between 0 s and 0 s" in found.evidence


# ---- 24 ----

CONCURRENCY = (1, 2, 4, 8, 16, 32)
P50_MS = (892, 1785, 3521, 7012, 14_201, 29_123)
TOKENS_PER_S = (68.4, 71.2, 73.8, 74.1, 72.3, 68.9)


def rtx_4090(folder: Path) -> Path:
    """TTFT 89 ms, then 60 tokens in 803 ms: an answer of 61 tokens takes 892 ms alone."""
    return write_ollama_profile(folder, floor_us=803_000 / 60, per_token_us=89_000 / 512)


@pytest.mark.parametrize(
    ("concurrency", "p50_ms", "tokens_per_s"), list(zip(CONCURRENCY, P50_MS, TOKENS_PER_S, strict=True))
)
def test_case_24_default_ollama_does_not_benefit_from_concurrency(
    tmp_path: Path, concurrency: int, p50_ms: float, tokens_per_s: float
) -> None:
    """N clients see N x 0.89 s, and the throughput stays."""
    case = ollama(rtx_4090(tmp_path), loop(10 * concurrency, concurrency, prompt=512), num_ctx=4096)
    _, metrics = measured(case)
    assert metrics.total.latency["e2el"].percentiles[50] == pytest.approx(p50_ms, rel=0.03)
    assert metrics.throughput.output_tokens == pytest.approx(tokens_per_s, rel=0.09)


def test_case_24_the_failures_are_clients_that_give_up(tmp_path: Path) -> None:
    """At 16 and 32 clients some wait longer than the client does; none is turned away."""
    output = {"lognormal": {"median": 50, "p95": 130}}
    for concurrency, fails in ((4, False), (32, True)):
        workload = loop(20 * concurrency, concurrency, prompt=512, output=output, client_timeout="30s")
        case = ollama(rtx_4090(tmp_path), workload, ("errors <= 1%",), num_ctx=4096)
        _, metrics = measured(case)
        assert set(metrics.total.errors) == ({"timed_out"} if fails else set())
        found = diagnose(Point.of(None, [0], [metrics], case.objectives))
        assert (found.resource if found else None) == ("num_parallel" if fails else None)


# ---- what users of Ollama observe ----


@pytest.mark.parametrize(("agents", "latency_ms"), [(1, 695), (2, 886), (4, 1855), (8, 3986)])
def test_one_slot_is_a_queue_with_one_server(tmp_path: Path, agents: int, latency_ms: float) -> None:
    """Measured: of 695 ms alone, the GPU takes 467 and the rest 212. N agents wait for the GPU, not for the rest."""
    write_ollama_profile(tmp_path, client_latency={"request_ms": 106, "response_ms": 106}, floor_us=467_000 / 61)
    _, metrics = measured(ollama(tmp_path, loop(60, agents), num_ctx=4096))
    assert metrics.total.latency["e2el"].percentiles[50] == pytest.approx(latency_ms, rel=0.07)


@pytest.mark.parametrize(("agents", "kept"), [(2, 0.800), (4, 0.404), (8, 0.203)])
def test_what_each_agent_keeps_of_its_throughput(tmp_path: Path, agents: int, kept: float) -> None:
    """TR129, llama3.2-1b: 858 ms alone (TR128), of which the GPU takes 0.62 (its plateau is 1.62 agents)."""
    write_ollama_profile(tmp_path, client_latency={"request_ms": 326}, floor_us=532_000 / 61)

    def rate(n: int) -> float:
        found = measured(ollama(tmp_path, loop(40 * n, n), num_ctx=4096))[1].throughput.completed
        assert found is not None
        return found

    assert rate(1) == pytest.approx(1 / 0.858, rel=0.01)
    assert rate(agents) / agents / rate(1) == pytest.approx(kept, rel=0.03)


def test_five_and_twenty_clients_get_the_same_throughput(tmp_path: Path) -> None:
    rates = [
        measured(ollama(rtx_4090(tmp_path), loop(200, clients, prompt=512), num_ctx=4096))[1].throughput.completed
        for clients in (5, 20)
    ]
    assert rates[0] == pytest.approx(rates[1], rel=1e-6)


def test_tokens_per_second_of_a_request_do_not_change_with_the_clients_while_parallel_has_no_effect(
    tmp_path: Path,
) -> None:
    speeds = []
    for clients in (1, 8):
        use = measured(ollama(rtx_4090(tmp_path), loop(40, clients, prompt=512), num_ctx=4096))[1].ollama
        assert use is not None
        speeds.append(use.eval_tokens_per_s)
    assert speeds[0] == speeds[1]


def test_more_slots_can_help(tmp_path: Path) -> None:
    """M2 Ultra, qwen2.5:7b: 0.124 segments/s with five slots, 0.105 with one: 18 % more, where a batch of five takes
    4.24 times as long as one."""
    write_ollama_profile(tmp_path, floor_us=1000, per_decode_us=4243)

    def rate(slots: int) -> float:
        case = ollama(tmp_path, loop(60, 20), num_ctx=4096, num_parallel=slots)
        found = measured(case)[1].throughput.completed
        assert found is not None
        return found

    assert rate(5) / rate(1) == pytest.approx(0.124 / 0.105, rel=0.02)


# ---- vLLM on the same GPU ----


def agents_per_s(folder: Path, kind: str, agents: int) -> float:
    if kind == "ollama":
        case = ollama(folder, loop(20 * agents, agents), num_ctx=4096)
    else:
        server = {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "h200", "profile": "./steps.yaml"}
        data = {"name": "case", "server": server, "workload": loop(20 * agents, agents), "run": {"seeds": 1}}
        case = Scenario.model_validate(data).with_base_dir(folder)
    found = measured(case)[1].throughput.completed
    assert found is not None
    return found


@pytest.mark.parametrize(("bits", "crossover"), [(8.5, (3, 4)), (4.89, (5, 8))])
def test_vllm_overtakes_ollama_at_about_three_agents(tmp_path: Path, bits: float, crossover: tuple[int, int]) -> None:
    """Ollama reads quantized weights and is faster alone; vLLM reads 16 bits once for all agents.

    Given: Ollama's 467 ms of GPU and 212 ms of the rest (measured, above). vLLM reads 16 / 8.5 of the bytes for each
    token (llama3.2:1b is a q8_0 file), and with eight agents each keeps half of its speed (TR132: 39 to 56 % lost).
    The reports advise Ollama up to three agents, vLLM from four. With 4-bit weights Ollama stays ahead longer.
    """
    other = {"request_ms": 106.0, "response_ms": 106.0}
    write_ollama_profile(tmp_path, client_latency=other, floor_us=467_000 / 61)
    step_us = 467_000 / 61 * 16 / bits
    one_more_us = step_us / 7  # eight together take twice as long as one
    write_profile(tmp_path, client_latency=other, floor_us=step_us - one_more_us, per_decode_us=one_more_us)
    ahead = [n for n in range(1, 9) if agents_per_s(tmp_path, "vllm", n) > agents_per_s(tmp_path, "ollama", n)]
    first = ahead[0]
    assert crossover[0] <= first <= crossover[1]
    assert ahead == list(range(first, 9))
    kept = agents_per_s(tmp_path, "vllm", 8) / 8 / agents_per_s(tmp_path, "vllm", 1)
    assert 1 - 0.56 <= kept <= 1 - 0.39
    assert agents_per_s(tmp_path, "vllm", 8) > 1.4 * agents_per_s(tmp_path, "ollama", 8) or bits < 8
