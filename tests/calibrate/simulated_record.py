"""Records of the simulated engine, written by the recorder as if it sat inside vLLM."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from calibrate.step_writer import StepWriter
from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.request import Request
from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs
from sim.engine.process import run
from sim.engine.recorded import LinearCost


@dataclass(frozen=True)
class Arrival:
    at_us: int
    request: Request
    abort_us: int | None = None


class _VllmRequest:
    """A request with the attributes that the recorder reads of vLLM's."""

    def __init__(self, request: Request, block_size: int) -> None:
        self.request = request
        self.block_size = block_size
        self.request_id = f"cmpl-{request.request_id}"
        self.num_prompt_tokens = request.num_prompt_tokens
        self.max_tokens = request.max_tokens
        self.priority = request.priority
        self.arrival_time = request.arrival_time / 1e9

    @property
    def block_hashes(self) -> list[int]:
        full = self.request.num_tokens // self.block_size
        return [value & (1 << 64) - 1 for value in self.request.hash_blocks(full, self.block_size)[:full]]

    @property
    def num_output_tokens(self) -> int:
        return self.request.num_output_tokens

    @property
    def num_computed_tokens(self) -> int:
        return self.request.num_computed_tokens

    @property
    def status(self) -> Any:
        return SimpleNamespace(name=self.request.status.name)


class RecordedSimulation:
    """Runs requests through a simulated engine with the recorder attached; nothing is slower for it."""

    def __init__(
        self,
        path: Path,
        arrivals: list[Arrival],
        *,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 512,
        num_gpu_blocks: int = 200,
        block_size: int = 16,
        async_scheduling: bool = False,
        hashes: bool = True,
    ) -> None:
        flags = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_model_len": max_model_len,
            "async_scheduling": async_scheduling,
        }
        cache = {"num_gpu_blocks": num_gpu_blocks, "block_size": block_size, "enable_prefix_caching": True}
        self.now_ns = 0
        self.engine = EngineCore(
            SchedulerConfig(**flags), CacheConfig(**cache), LinearCost(900, 11, 70, 30), reference=True
        )
        self.engine.on_schedule = self._scheduled
        self.writer = StepWriter(
            path, {**flags, **cache, "kv_groups": [["full", None, 1]]}, clock=lambda: self.now_ns / 1e9
        )
        self.vllm: dict[Request, _VllmRequest] = {}
        self.arrivals = [(a.at_us * 1_000, a.request.request_id, a.request) for a in arrivals]
        heapq.heapify(self.arrivals)
        self.aborts = sorted((a.abort_us * 1_000, a.request.request_id, a.request) for a in arrivals if a.abort_us)
        self.num_preemptions = 0
        run(self.engine, self)
        self.writer.close()

    def deliver(self, now_ns: int) -> None:
        self.now_ns = now_ns
        while self.arrivals and self.arrivals[0][0] <= now_ns:
            request = heapq.heappop(self.arrivals)[2]
            self.vllm[request] = _VllmRequest(request, self.engine.scheduler.cache_config.block_size)
            self.engine.scheduler.add_request(request)
            self.writer.added(self.vllm[request])
        self.abort_due(now_ns)

    def abort_due(self, now_ns: int) -> None:
        self.now_ns = now_ns
        for abort in [a for a in self.aborts if a[0] <= now_ns and a[2] in self.vllm]:
            self.aborts.remove(abort)
            request = abort[2]
            if not request.is_finished:
                self.engine.scheduler.abort_requests([request])
                self.writer.ended(self.vllm[request])

    def next_event_ns(self) -> int | None:
        return self.arrivals[0][0] if self.arrivals else None

    def publish(self, batch: InFlightBatch, outputs: StepOutputs) -> None:
        self.now_ns = batch.end_ns
        for request in outputs.finished:
            self.writer.ended(self.vllm[request])
        if not batch.output.is_empty:
            self.writer.completed(self._scheduler(), self._output(batch), batch.end_ns / 1e9)

    def _scheduled(self, batch: InFlightBatch) -> None:
        for request in batch.output.preempted:
            self.writer.preempted(self.vllm[request])
            self.num_preemptions += 1
        self.now_ns = batch.scheduled_ns
        self.writer.scheduled(self._scheduler(), self._output(batch), batch.scheduled_ns / 1e9)

    def _scheduler(self) -> Any:
        scheduler = self.engine.scheduler
        return SimpleNamespace(
            requests={vllm.request_id: vllm for vllm in self.vllm.values()},
            get_request_counts=lambda: (len(scheduler.running), len(scheduler.waiting)),
            kv_cache_manager=scheduler.kv_cache_manager,
        )

    def _output(self, batch: InFlightBatch) -> Any:
        if not hasattr(self, "_outputs"):
            self._outputs: dict[int, Any] = {}
        key = id(batch.output)
        if key not in self._outputs:
            output = batch.output
            tokens = {self.vllm[r].request_id: n for r, n in output.num_scheduled_tokens.items()}
            new = [SimpleNamespace(req_id=self.vllm[r].request_id) for r in output.hits if not r.num_preemptions]
            self._outputs[key] = SimpleNamespace(num_scheduled_tokens=tokens, scheduled_new_reqs=new, keep=output)
        return self._outputs[key]
