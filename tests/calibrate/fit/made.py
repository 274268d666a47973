"""Measurements made by the simulator itself, of a server whose coefficients are known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from calibrate.comparison import predicted_latencies
from calibrate.fit_terms import client_latency
from calibrate.readers.measured import MeasuredRun
from calibrate.replay import simulate_requests
from calibrate.replay_server import ServerChoice, describe_server
from sim.deployment import Deployment
from sim.engine.fitted import FittedModel, StepCoefficients
from sim.workload.trace import Trace

TRUTH = {
    "floor_us": 9000.0,
    "per_token_us": 60.0,
    "per_decode_us": 40.0,
    "client.request_ms": 8.0,
}

COEFFICIENTS = StepCoefficients(
    floor_ns=9e6, token_ns=60e3, attention_pair_ns=2.0, decode_ns=40e3, decode_context_ns=60
)


def choice() -> ServerChoice:
    """A server whose model and GPU are known."""
    flags = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "num_gpu_blocks_override": 20_000}
    return describe_server({"model": "Qwen/Qwen3-8B", "gpu": "h100-80gb", "version": "0.23.0", "flags": flags})


@cache
def deployment() -> Deployment:
    """The same, planned."""
    return choice().plan()


def made_run(name: str, rate_per_s: float, number: int = 120, cap: int | None = None) -> MeasuredRun:
    """A run of Poisson arrivals on the known server, as a client would have measured it."""
    rng = np.random.default_rng(number)
    times = np.rint(np.cumsum(rng.exponential(1e9 / rate_per_s, number))).astype(np.int64)
    requests = Trace(
        sent_ns=times,
        wanted_ns=times,
        prompt_tokens=rng.integers(200, 1200, number),
        output_tokens=rng.integers(20, 80, number),
    )
    model = FittedModel(COEFFICIENTS)
    record = simulate_requests(requests, deployment(), model, client_latency(TRUTH), max_concurrency=cap)
    seen = predicted_latencies(record)
    sent = np.rint(seen.sent_s * 1e9).astype(np.int64)
    return MeasuredRun(name, replace(requests, sent_ns=sent), seen.ttft_s, seen.e2el_s, max_concurrency=cap)
