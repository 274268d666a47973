"""Fleets for tests: a profile in which a step costs so much, and any scenario as a fleet of one."""

from pathlib import Path
from typing import Any

from sim.deployment import plan
from sim.fleet.fleet import Fleet
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.workload.build import build_workload
from tests.cases.build import one_class, scenario, write_profile

CHAT = {
    "name": "chat",
    "first_prompt_tokens": {"lognormal": {"median": 400, "p95": 3000}},
    "next_prompt_tokens": 120,
    "output_tokens": {"lognormal": {"median": 80, "p95": 300}},
    "turns": {"geometric": {"mean": 6, "max": 20}},
    "think_time": {"exponential": {"mean": "4s"}},
}
MIXED = {"lognormal": {"median": 60, "p95": 900}}


def costs(folder: Path) -> Path:
    """Writes a profile: 10 ms a step at least, 40 µs a token, 60 ns a cached token; 5 ms to the engine and back."""
    return write_profile(
        folder,
        client_latency={"request_ms": 5.0, "response_ms": 5.0},
        floor_us=10_000,
        per_token_us=40,
        per_attention_pair_ns=1.5,
        per_decode_context_token_ns=60,
    )


def users(folder: Path, num_users: int, *, duration: str = "60s", server: Any = None, **rest: Any) -> Scenario:
    """Returns users who chat."""
    workload = {"kind": "users", "users": num_users, "classes": [CHAT], **rest}
    return scenario(costs(folder), workload, server=server, run={"duration": duration, "seeds": 1}, **FLAGS)


def open_loop(
    folder: Path, rate: float, *, output: Any = 60, arrivals: str = "poisson", server: Any = None, **run: Any
) -> Scenario:
    """Returns requests at a rate."""
    workload = {"kind": "open_loop", "request_rate": rate, "arrivals": arrivals, "classes": one_class(500, output)}
    return scenario(
        costs(folder), workload, server=server, run={"duration": "60s", "warm_up": "5s", "seeds": 1, **run}, **FLAGS
    )


FLAGS: dict[str, Any] = {
    "max_model_len": 16384,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "num_gpu_blocks_override": 4000,
}


def simulate_as_fleet(case: Scenario, seed: int = 0, load: float | None = None) -> RunRecord:
    """Simulates a scenario with the machinery of several replicas, however many it has."""
    deployment = plan(case)
    workload = build_workload(case, seed, load, deployment.flags.max_model_len)
    run = RunRecord(
        class_names=workload.class_names,
        num_gpu_blocks=deployment.cache_config.num_gpu_blocks,
        block_size=deployment.cache_config.block_size,
        max_num_seqs=deployment.scheduler_config.num_seats,
        max_num_batched_tokens=deployment.scheduler_config.max_num_batched_tokens,
        num_replicas=1,
        calibrated=False,
    )
    Fleet(deployment, workload, run).run()
    return run
