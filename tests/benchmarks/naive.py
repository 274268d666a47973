"""A naive engine: the same rules as a synchronous vLLM without a prefix cache, one loop over all requests in each step.

It is here to be compared with. Every running request is visited in every step, every token has its own time, blocks are
a count. As long as blocks are plenty its clock is that of `EngineCore` with `async_scheduling: false` and
`enable_prefix_caching: false`, which `test_naive.py` checks: it does the same work, and no more.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

from sim.deployment import Deployment, plan
from sim.engine.step_time import Batch
from sim.records import Outcome
from sim.scenario.model import Scenario
from sim.workload.build import build_workload
from sim.workload.client import ClientRequest


@dataclass(slots=True)
class NaiveRequest:
    """A request, its progress and the time of each of its tokens."""

    client: ClientRequest
    num_computed: int = 0
    num_blocks: int = 0
    token_times: array[int] = field(default_factory=lambda: array("q"))

    @property
    def num_missing(self) -> int:
        """Tokens known and not yet computed."""
        return self.client.num_prompt_tokens + len(self.token_times) - self.num_computed


class NaiveEngine:
    """Simulates a scenario; `run` fills `done` and `num_steps`."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        deployment = plan(scenario)
        assert isinstance(deployment, Deployment)
        self.config = deployment.scheduler_config
        self.block_size = deployment.cache_config.block_size
        self.num_free = deployment.cache_config.num_gpu_blocks - 1
        self.model = deployment.step_time_model()
        self.workload = build_workload(scenario, seed, None, deployment.flags.max_model_len)
        self.waiting: deque[NaiveRequest] = deque()
        self.running: list[NaiveRequest] = []
        self.done: list[NaiveRequest] = []
        self.num_steps = 0

    def run(self) -> int:
        """Runs to the end and returns the time in nanoseconds."""
        now = 0
        while True:
            for client in self.workload.pop_due(now):
                self.waiting.append(NaiveRequest(client))
            if not self.waiting and not self.running:
                next_ns = self.workload.next_send_ns()
                if next_ns is None:
                    return now
                now = next_ns
                continue
            scheduled = self._schedule()
            now += self.model.step_time(_batch(scheduled))
            self._update(scheduled, now)
            self.num_steps += 1

    def _schedule(self) -> list[tuple[NaiveRequest, int]]:
        budget = self.config.max_num_batched_tokens
        scheduled = []
        for request in self.running:
            num_tokens = min(request.num_missing, budget)
            if num_tokens:
                self._allocate(request, num_tokens)
                scheduled.append((request, num_tokens))
                budget -= num_tokens
        while self.waiting and budget and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.popleft()
            num_tokens = min(request.num_missing, budget)
            self._allocate(request, num_tokens)
            scheduled.append((request, num_tokens))
            budget -= num_tokens
            self.running.append(request)
        return scheduled

    def _allocate(self, request: NaiveRequest, num_tokens: int) -> None:
        num_blocks = -(-(request.num_computed + num_tokens) // self.block_size)
        self.num_free -= num_blocks - request.num_blocks
        request.num_blocks = num_blocks
        assert self.num_free >= 0, "the naive engine does not preempt: give it more blocks"

    def _update(self, scheduled: list[tuple[NaiveRequest, int]], now: int) -> None:
        for request, num_tokens in scheduled:
            request.num_computed += num_tokens
            if request.num_missing:
                continue
            request.token_times.append(now)
            client = request.client
            if len(request.token_times) == min(client.output_tokens, client.max_tokens):
                self.running.remove(request)
                self.num_free += request.num_blocks
                self.done.append(request)
                self.workload.on_done(client, Outcome.FINISHED, len(request.token_times), now)


def _batch(scheduled: list[tuple[NaiveRequest, int]]) -> Batch:
    decodes = [request.num_computed for request, num_tokens in scheduled if num_tokens == 1]
    chunks = [(num_tokens, request.num_computed) for request, num_tokens in scheduled if num_tokens > 1]
    return Batch.of(decodes, chunks)
