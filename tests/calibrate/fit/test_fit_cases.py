"""Fits may simulate with one kind of KV block where blocks cannot run out, and only there."""

from __future__ import annotations

from dataclasses import replace

from calibrate.fit_cases import with_one_group
from calibrate.readers.ladder import Rung
from calibrate.replay import simulate_requests
from calibrate.replay_server import describe_server
from sim.deployment import Deployment

RUNG = Rung("four", 4, 12, 900.0, 60.0, {})


def server(num_gpu_blocks: int, *, enable_prefix_caching: bool = False) -> Deployment:
    flags = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "max_model_len": 4096,
        "enable_prefix_caching": enable_prefix_caching,
        "num_gpu_blocks_override": num_gpu_blocks,
    }
    return describe_server({"model": "openai/gpt-oss-120b", "gpu": "h200", "version": "0.22.0", "flags": flags}).plan()


def test_where_blocks_abound_the_schedule_is_the_same() -> None:
    real, requests = server(1000), RUNG.requests(0.3)
    simple = with_one_group(real, requests, RUNG.max_concurrency)
    assert len(real.cache_config.kv_cache_groups) == 2
    assert len(simple.cache_config.kv_cache_groups) == 1
    runs = [
        simulate_requests(requests, each, each.step_time_model(), each.latency, max_concurrency=4)
        for each in (real, simple)
    ]
    first, second = runs
    assert list(first.steps.end_ns) == list(second.steps.end_ns)
    assert [request.finish_ns for request in first.requests] == [request.finish_ns for request in second.requests]


def test_where_blocks_may_run_out_or_are_looked_up_nothing_changes() -> None:
    requests, cap = RUNG.requests(0.3), RUNG.max_concurrency
    scarce = server(500)
    assert with_one_group(scarce, requests, 2) is not scarce
    assert with_one_group(scarce, requests, cap) is scarce
    looked_up = replace(server(1000), cache_config=replace(server(1000).cache_config, enable_prefix_caching=True))
    assert with_one_group(looked_up, requests, cap) is looked_up
