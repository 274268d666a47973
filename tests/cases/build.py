"""Servers of which a report gives only a few numbers: the KV pool, the flags, and what a step costs.

Two ways in. `scenario` and `write_profile` go the user's way: a scenario whose profile is a file, simulated by
`sim.simulate.simulate`. `serve` builds the engine itself around requests made by hand, where every tick matters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sim.api_server import AdmissionLimits, ApiServer
from sim.capacity import Diagnosis, Point
from sim.capacity.diagnosis import diagnose
from sim.core.config import CacheConfig, SchedulerConfig
from sim.engine.engine_core import EngineCore
from sim.engine.process import run
from sim.engine.step_time import ClientLatency, StepTimeModel
from sim.records import Outcome, RequestRecord, RunRecord
from sim.results.metrics import RunMetrics, summarize
from sim.scenario.model import Scenario
from sim.simulate import simulate
from sim.workload.client import ClientRequest, Prompt

S = 1_000_000_000
MS = 1_000_000


def write_profile(folder: Path, *, client_latency: dict[str, float] | None = None, **step_time: Any) -> Path:
    """Writes a profile of kind `fitted` with these keys (calibrate/profiles/README.md), and returns the folder."""
    profile = {
        "format": 1,
        "name": "stated",
        "calibrated": "prior",
        "date": "2026-01-01",
        "source": "the numbers of the case",
        "data": ["the numbers of the case"],
        "server": {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "h200", "vllm_version": "0.32"},
        "step_time": {"kind": "fitted", **step_time},
        "client_latency": client_latency or {},
    }
    # A date is no JSON, and a text is no date: the one line that is YAML alone.
    text = json.dumps(profile, indent=1).replace('"2026-01-01"', "2026-01-01")
    (folder / "steps.yaml").write_text(text, encoding="utf-8")
    return folder


def scenario(
    folder: Path,
    workload: dict[str, Any],
    *,
    server: dict[str, Any] | None = None,
    objectives: Iterable[str] = (),
    search: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    **flags: Any,
) -> Scenario:
    """Returns a scenario served with the profile of the folder; `server` and the flags name what the case gives.

    Where a case gives only the size of the pool, model and GPU are some that hold it: the number of blocks and the
    profile decide everything.
    """
    data = {
        "name": "case",
        "server": {
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "gpu": "h200",
            "profile": "./steps.yaml",
            **(server or {}),
            "flags": flags,
        },
        "workload": workload,
        "objectives": list(objectives),
        "search": search,
        "run": run or {"seeds": 1},
    }
    return Scenario.model_validate(data).with_base_dir(folder)


def one_class(prompt: Any, output: Any, **rest: Any) -> list[dict[str, Any]]:
    """Returns the only class of an open or closed loop."""
    return [{"name": "only", "prompt_tokens": prompt, "output_tokens": output, **rest}]


def measured(case: Scenario, *, load: float | None = None, seed: int = 0) -> tuple[RunRecord, RunMetrics]:
    """Simulates one load with one seed."""
    record = simulate(case, seed=seed, load=load)
    return record, summarize(record, case)


def diagnosed(case: Scenario, *, load: float | None = None, seed: int = 0) -> tuple[RunMetrics, Diagnosis | None]:
    """Simulates one load with one seed, and names what stands in the way of the scenario's objectives."""
    _, metrics = measured(case, load=load, seed=seed)
    return metrics, diagnose(Point.of(load, [seed], [metrics], case.objectives))


def sent(
    number: int, prompt: int | Prompt, output: int, at_ns: int = 0, *, max_tokens: int | None = None, **fields: Any
) -> ClientRequest:
    """Returns a request; a prompt given by its length is text that nobody else sends."""
    segments = ((10_000 + 2 * number, prompt),) if isinstance(prompt, int) else prompt
    return ClientRequest(
        request_id=number,
        prompt=segments,
        num_prompt_tokens=sum(length for _, length in segments),
        max_tokens=output if max_tokens is None else max_tokens,
        output_tokens=output,
        output_stream=10_001 + 2 * number,
        class_id=0,
        queued_ns=at_ns,
        sent_ns=at_ns,
        **fields,
    )


class Listed:
    """A workload of requests with given send times."""

    class_names = ("only",)
    warnings = ()

    def __init__(self, requests: Sequence[ClientRequest]) -> None:
        self._requests = sorted(requests, key=lambda request: (request.sent_ns, request.request_id), reverse=True)
        self.arrivals_end_ns = self._requests[0].sent_ns if self._requests else 0
        self.ended: list[tuple[ClientRequest, Outcome, int]] = []

    def next_send_ns(self) -> int | None:
        return self._requests[-1].sent_ns if self._requests else None

    def pop_due(self, now_ns: int) -> list[ClientRequest]:
        due = []
        while self._requests and self._requests[-1].sent_ns <= now_ns:
            due.append(self._requests.pop())
        return due

    def on_done(self, request: ClientRequest, outcome: Outcome, num_output_tokens: int, now_ns: int) -> None:
        self.ended.append((request, outcome, num_output_tokens))


def serve(
    requests: Sequence[ClientRequest],
    cost: StepTimeModel,
    *,
    num_gpu_blocks: int = 100_000,
    block_size: int = 16,
    enable_prefix_caching: bool = True,
    reference: bool = False,
    latency: ClientLatency | None = None,
    limits: AdmissionLimits | None = None,
    **flags: Any,
) -> RunRecord:
    """Runs requests through an engine with these flags; synchronous unless `async_scheduling` is given."""
    known: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 1_000_000}
    config = SchedulerConfig(**(known | flags))
    cache = CacheConfig(num_gpu_blocks, block_size, enable_prefix_caching)
    record = RunRecord(
        class_names=("only",),
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_replicas=1,
        calibrated=False,
    )
    engine = EngineCore(config, cache, cost, reference=reference)
    workload = Listed(requests)
    server = ApiServer(
        workload,
        engine,
        record,
        limits=limits or AdmissionLimits(max_model_len=config.max_model_len),
        latency=latency or ClientLatency(),
    )
    record.end_ns = run(engine, server, server)
    record.arrivals_end_ns = workload.arrivals_end_ns
    return record


def by_id(record: RunRecord) -> dict[int, RequestRecord]:
    """Returns the records by request."""
    return {request.request_id: request for request in record.requests}


def tokens_per_s(record: RunRecord, start_s: float, end_s: float) -> float:
    """Returns the tokens after the first that came out between two moments, per second."""
    gaps = zip(record.itl.end_ns, record.itl.count, strict=True)
    return sum(count for end_ns, count in gaps if start_s * S <= end_ns < end_s * S) / (end_s - start_s)
