"""The fast path, as whole runs use it, gives the runs of the reference: each request, step and gap.

Other tests compare the two step by step, with the ids of all blocks, which keeps the fast path from what it does when
nobody looks: it makes steps ahead, and only counts blocks. Here it runs as in every estimate. HEADCOUNT_FUZZ=100 draws
a hundred times as many scenarios.
"""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest
import yaml

from sim.deployment import plan
from sim.records import RunRecord
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.factories import FUZZ

_MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b", "google/gemma-3-4b-it")


def draw_scenario(rng: random.Random) -> Scenario:
    """Returns a small scenario in which much goes on: full pools, long prompts, short patience, failures."""
    max_model_len = rng.choice((512, 2048, 4096))
    flags: dict[str, Any] = {
        "max_model_len": max_model_len,
        "max_num_seqs": rng.choice((2, 5, 16, 64)),
        "max_num_batched_tokens": rng.choice((64, 256, 2048)),
        "async_scheduling": rng.random() < 0.7,
        "enable_prefix_caching": rng.random() < 0.8,
    }
    if rng.random() < 0.2:
        flags["scheduling_policy"] = "priority"
    if rng.random() < 0.2:
        flags["max_num_queued_reqs"] = rng.choice((4, 20))
    flags["max_num_seqs"] = min(flags["max_num_seqs"], flags["max_num_batched_tokens"])
    workload = _draw_users(rng, max_model_len) if rng.random() < 0.6 else _draw_open_loop(rng, max_model_len)
    if rng.random() < 0.4:
        workload["client_timeout"] = rng.choice(("2s", "10s", "30s"))
        if rng.random() < 0.5:
            workload["retries"] = {"max": 2, "backoff": "1s"}
    server = {"model": rng.choice(_MODELS), "gpu": rng.choice(("h100", "l4", "mi300x")), "flags": flags}
    _draw_rare(rng, server)
    scenario: dict[str, Any] = {"name": "drawn", "server": server, "workload": workload, "run": {"duration": "40s"}}
    memory = plan(scenario_from_text(yaml.safe_dump(scenario))).memory
    if rng.random() < 0.7:  # from what one request needs to four times as much
        blocks = memory.layout.blocks_per_request(max_model_len)
        flags["num_gpu_blocks_override"] = 1 + round(blocks * rng.uniform(1, 4))
    elif memory.num_gpu_blocks > 200_000:
        flags["num_gpu_blocks_override"] = 200_000  # the reference lists them all
    return scenario_from_text(yaml.safe_dump(scenario))


def _draw_rare(rng: random.Random, server: dict[str, Any]) -> None:
    """Adds what few servers have: gates of admission, blocks of any size, replicas that fail."""
    flags = server["flags"]
    if rng.random() < 0.2:
        flags["watermark"] = rng.choice((0.05, 0.3))
    if rng.random() < 0.2:
        flags["long_prefill_token_threshold"] = rng.choice((1, 16, 128))
    if rng.random() < 0.3:
        flags["scheduler_reserve_full_isl"] = False
    if rng.random() < 0.3:
        flags["block_size"] = rng.choice((1, 5, 17, 100)) if server["gpu"] == "mi300x" else rng.choice((32, 48, 256))
    if rng.random() < 0.2:
        server |= {"replicas": 2, "router_max_retries": rng.choice((0, 1))}
        server["failures"] = [{"after": f"{rng.randint(1, 20)}s", "replica": 1, "noticed_after": "1s", "restart": "5s"}]


def _draw_users(rng: random.Random, max_model_len: int) -> dict[str, Any]:
    classes = []
    for number in range(rng.choice((1, 1, 2))):
        drawn: dict[str, Any] = {
            "name": f"class-{number}",
            "first_prompt_tokens": {"lognormal": {"median": max_model_len // 20, "p95": max_model_len // 4}},
            "next_prompt_tokens": rng.choice((1, 16, 40)),
            "output_tokens": {"exponential": {"mean": rng.choice((3, 40, 200))}},
            "turns": rng.choice((1, 4, 10)),
            "think_time": {"exponential": {"mean": rng.choice(("200ms", "2s"))}},
        }
        if rng.random() < 0.5:
            drawn["shared_prefix"] = {"tokens": rng.randint(1, max_model_len // 4), "scope": "all", "name": "system"}
        if rng.random() < 0.3:
            drawn["priority"] = rng.randint(0, 2)
        classes.append(drawn)
    return {"kind": "users", "users": rng.choice((1, 6, 30)), "classes": classes}


def _draw_open_loop(rng: random.Random, max_model_len: int) -> dict[str, Any]:
    classes = []
    for number in range(rng.choice((1, 2))):
        drawn: dict[str, Any] = {
            "name": f"class-{number}",
            "prompt_tokens": {"uniform": {"low": 1, "high": max_model_len // 2}},
            "output_tokens": {"exponential": {"mean": rng.choice((3, 40, 200))}},
        }
        if rng.random() < 0.4:
            drawn["max_tokens"] = rng.choice((16, max_model_len // 2))
        classes.append(drawn)
    return {"kind": "open_loop", "arrivals": "poisson", "request_rate": rng.choice((0.5, 3, 12)), "classes": classes}


def facts(run: RunRecord) -> dict[str, Any]:
    """Returns all that a run recorded; gaps of one moment in one order, as their rows may change places."""
    itl = sorted(zip(run.itl.end_ns, run.itl.gap_ns, run.itl.class_id, run.itl.count, strict=True))
    steps = {name: column.tolist() for name, column in asdict(run.steps).items()}
    preemptions = {name: column.tolist() for name, column in asdict(run.preemptions).items()}
    return {"requests": list(run.requests), "itl": itl, "run_end_ns": run.end_ns, **steps, "preempted": preemptions}


@pytest.mark.parametrize("seed", range(24 * FUZZ))
def test_a_run_is_the_one_of_the_reference(seed: int) -> None:
    scenario = draw_scenario(random.Random(f"fast path {seed}"))
    expected, found = facts(simulate(scenario, seed=seed, reference=True)), facts(simulate(scenario, seed=seed))
    for name, value in expected.items():
        assert found[name] == value, name
