"""What the server was doing during the window, from the step log: time-weighted use, and what its queue waited for.

A row of the log describes the engine from the start of its step (or the end of the one before, where asynchronous
scheduling lets two overlap) to its end. Between steps the engine is idle: nothing runs, no block is held.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.records import RunRecord
from sim.results.columns import RequestColumns, as_array
from sim.results.fleet import up_time_ns
from sim.results.percentiles import IntArray
from sim.results.wait_reasons import Reasons, WaitReasons
from sim.results.window import Window

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """A quantity over the window: its time-weighted mean and its maximum. None for an empty window."""

    mean: float | None
    max: float | None


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
        tail_wait_reasons: percentile -> what the requests waited for whose time in the queue reaches it.
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
    tail_wait_reasons: Mapping[float, WaitReasons]
    decode_step_ms: float | None
    mixed_step_ms: float | None
    full_step_share: float | None


def server_use(
    run: RunRecord, window: Window, columns: RequestColumns | None = None, percentiles: Iterable[float] = ()
) -> ServerUse:
    """Sums up the step log over the window.

    Args:
        run: the records.
        window: which stretch of it.
        columns: its requests, where they have been read already.
        percentiles: of the time in the queue: whose waiting to look at on its own.
    """
    requests = RequestColumns.of(run) if columns is None else columns
    sent = (requests.sent_ns >= window.start_ns) & (requests.sent_ns <= window.end_ns)
    rows = _Rows.of(run, window)
    full = rows.num_tokens >= run.max_num_batched_tokens
    reasons = Reasons(run, full)
    busy_ns = int(rows.weight_ns.sum())
    capacity_ns = up_time_ns(run, window)
    queried = int(rows.inside(run.steps.prefix_queries).sum())
    return ServerUse(
        running=rows.level(rows.running),
        waiting=rows.level(rows.waiting),
        kv=rows.level(rows.kv_share / run.num_replicas),
        busy=busy_ns / capacity_ns if capacity_ns else None,
        num_steps=int(rows.ended.sum()),
        num_preemptions=int(rows.inside(run.steps.num_preempted).sum()),
        prefix_hit_rate=int(rows.inside(run.steps.prefix_hits).sum()) / queried if queried else None,
        wait_reasons=reasons.shares(rows.weight_ns * rows.waiting),
        tail_wait_reasons={q: reasons.of_tail(requests, sent, rows.begins_ns, q) for q in percentiles},
        decode_step_ms=rows.mean_duration_ms(rows.prefill == 0),
        mixed_step_ms=rows.mean_duration_ms(rows.prefill > 0),
        full_step_share=int(rows.weight_ns[full].sum()) / busy_ns if busy_ns else None,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """The step log, each row with the stretch of the window it stands for."""

    window: Window
    begins_ns: IntArray  # the end of the step before, where the two overlap
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
            begins_ns=begin,
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
