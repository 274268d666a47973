"""What the server was doing during the window, from the step log: time-weighted use, and what its queue waited for.

A row of the log describes the engine from the start of its step (or the end of the one before, where asynchronous
scheduling lets two overlap) to its end. Between steps the engine is idle: nothing runs, no block is held.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.records import RunRecord
from sim.results.columns import as_array
from sim.results.percentiles import IntArray
from sim.results.window import Window

FloatArray = npt.NDArray[np.float64]

_KV_LOW = 0.5


@dataclass(frozen=True, slots=True)
class Level:
    """A quantity over the window: its time-weighted mean and its maximum. None for an empty window."""

    mean: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class WaitReasons:
    """Of the request-seconds spent in the scheduler's queue, the share that waited for each thing (sum 1, or all 0).

    vLLM admits from the queue until the running list is full, the step's token budget is used up, or the KV cache has
    no blocks for the next request. What is left waiting after a step was scheduled therefore waited for the first of
    the three that applies. (Without chunked prefill a prompt may also wait because it is longer than what is left of
    the budget: with most of the blocks free, that is what it was.)
    """

    max_num_seqs: float
    token_budget: float
    kv_blocks: float


@dataclass(frozen=True, slots=True)
class ServerUse:
    """The engine over the window; several replicas are summed (running, waiting) or averaged (the rest).

    Attributes:
        running: requests being served.
        waiting: requests in the scheduler's queue, counted after each scheduling.
        kv: share of the KV blocks that is held by requests.
        busy: share of the time that a step is executing.
        num_steps: steps that ended in the window.
        num_preemptions: preemptions in those steps.
        prefix_hit_rate: prompt tokens found in the prefix cache / looked up; None when none was looked up.
        wait_reasons: what the queue waited for.
        decode_step_ms: mean duration of the steps that only decode; None without such steps.
        mixed_step_ms: mean duration of the steps that carry prompt chunks; None without such steps.
        full_step_share: share of the busy time in steps that used their whole token budget.
    """

    running: Level
    waiting: Level
    kv: Level
    busy: float | None
    num_steps: int
    num_preemptions: int
    prefix_hit_rate: float | None
    wait_reasons: WaitReasons
    decode_step_ms: float | None
    mixed_step_ms: float | None
    full_step_share: float | None


def server_use(run: RunRecord, window: Window) -> ServerUse:
    """Sums up the step log over the window."""
    rows = _Rows.of(run, window)
    full = rows.num_tokens >= run.max_num_batched_tokens
    busy_ns = int(rows.weight_ns.sum())
    capacity_ns = window.length_ns * run.num_replicas
    queried = int(rows.inside(run.steps.prefix_queries).sum())
    return ServerUse(
        running=rows.level(rows.running),
        waiting=rows.level(rows.waiting),
        kv=rows.level(rows.kv_share / run.num_replicas),
        busy=busy_ns / capacity_ns if capacity_ns else None,
        num_steps=int(rows.ended.sum()),
        num_preemptions=int(rows.inside(run.steps.num_preempted).sum()),
        prefix_hit_rate=int(rows.inside(run.steps.prefix_hits).sum()) / queried if queried else None,
        wait_reasons=_wait_reasons(run, rows, full),
        decode_step_ms=rows.mean_duration_ms(rows.prefill == 0),
        mixed_step_ms=rows.mean_duration_ms(rows.prefill > 0),
        full_step_share=int(rows.weight_ns[full].sum()) / busy_ns if busy_ns else None,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """The step log, each row with the stretch of the window it stands for."""

    window: Window
    begin_ns: IntArray  # clipped to the window and to the end of the step before
    finish_ns: IntArray  # clipped to the window
    duration_ns: IntArray  # of the whole step
    ended: npt.NDArray[np.bool_]  # in the window
    num_replicas: int
    running: IntArray
    waiting: IntArray
    prefill: IntArray
    num_tokens: IntArray
    kv_share: FloatArray

    @classmethod
    def of(cls, run: RunRecord, window: Window) -> _Rows:
        steps = run.steps
        start, end, replica = as_array(steps.start_ns), as_array(steps.end_ns), as_array(steps.replica)
        begin = start.copy()
        for number in range(run.num_replicas):
            own = np.flatnonzero(replica == number)
            begin[own[1:]] = np.maximum(start[own[1:]], end[own[:-1]])
        prefill = as_array(steps.num_prefill_tokens)
        usable = max(1, run.num_gpu_blocks - 1)  # the null block is never handed out
        return cls(
            window=window,
            begin_ns=np.clip(begin, window.start_ns, max(window.start_ns, window.end_ns)),
            finish_ns=np.clip(end, window.start_ns, max(window.start_ns, window.end_ns)),
            duration_ns=end - begin,
            ended=(end >= window.start_ns) & (end <= window.end_ns),
            num_replicas=run.num_replicas,
            running=as_array(steps.num_running),
            waiting=as_array(steps.num_waiting),
            prefill=prefill,
            num_tokens=prefill + as_array(steps.num_decodes),
            kv_share=1 - as_array(steps.num_free_blocks) / usable,
        )

    @property
    def weight_ns(self) -> IntArray:
        return self.finish_ns - self.begin_ns

    def inside(self, column: array[int]) -> IntArray:
        """Returns the rows of a column whose step ended in the window."""
        return as_array(column)[self.ended]

    def level(self, values: IntArray | FloatArray) -> Level:
        """Returns the time-weighted mean and the maximum of the sum over the replicas."""
        if not self.window.length_ns:
            return Level(None, None)
        weight = self.weight_ns
        shown = weight > 0
        if not shown.any():
            return Level(0.0, 0.0)
        mean = float((values[shown] * weight[shown]).sum()) / self.window.length_ns
        if self.num_replicas == 1:
            return Level(mean, float(values[shown].max()))
        return Level(mean, self._peak(values[shown], shown))

    def _peak(self, values: IntArray | FloatArray, shown: npt.NDArray[np.bool_]) -> float:
        """Returns the largest sum of the replicas' step functions; an end comes before a start at the same time."""
        times = np.concatenate([self.finish_ns[shown], self.begin_ns[shown]])
        changes = np.concatenate([-values, values])
        return float(np.cumsum(changes[np.argsort(times, kind="stable")]).max())

    def mean_duration_ms(self, chosen: npt.NDArray[np.bool_]) -> float | None:
        """Returns the mean duration of the chosen steps that ended in the window."""
        durations = self.duration_ns[chosen & self.ended]
        return int(durations.sum()) / len(durations) / 1e6 if len(durations) else None


def _wait_reasons(run: RunRecord, rows: _Rows, full: npt.NDArray[np.bool_]) -> WaitReasons:
    waited = rows.weight_ns * rows.waiting
    total = int(waited.sum())
    if not total:
        return WaitReasons(0.0, 0.0, 0.0)
    capped = rows.running >= run.max_num_seqs
    preempting = as_array(run.steps.num_preempted) > 0  # vLLM admits nothing in a step that preempts
    for_seqs = int(waited[capped & ~preempting].sum())
    short = full | (rows.kv_share < _KV_LOW)
    for_budget = int(waited[short & ~capped & ~preempting].sum())
    return WaitReasons(for_seqs / total, for_budget / total, (total - for_seqs - for_budget) / total)
