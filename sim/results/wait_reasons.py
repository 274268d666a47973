"""What requests in the queue waited for, from the step log: all of them together, or those who waited longest.

The two differ. Where a crowd arrives at once, most of the waiting is for the first steps; those who break an objective
may be the few who found every seat taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.records import RunRecord
from sim.results.columns import BoolArray, RequestColumns, as_array
from sim.results.latency import request_latency
from sim.results.percentiles import IntArray, Sample

_KV_LOW = 0.5


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


class Reasons:
    """Which of the three each step of a run left its queue waiting for.

    Args:
        run: the records.
        full: which steps used their whole token budget.
    """

    def __init__(self, run: RunRecord, full: BoolArray) -> None:
        steps = run.steps
        kv_share = 1 - as_array(steps.num_free_blocks) / max(1, run.num_gpu_blocks - 1)
        preempting = as_array(steps.num_preempted) > 0  # vLLM admits nothing in a step that preempts
        capped = (as_array(steps.num_running) >= run.max_num_seqs) & ~preempting
        short = (full | (kv_share < _KV_LOW)) & ~capped & ~preempting
        self._is = (capped, short, ~(capped | short))
        self._end_ns = as_array(steps.end_ns)
        self._is_one_engine = run.num_replicas == 1

    def shares(self, waited_ns: IntArray) -> WaitReasons:
        """Returns the shares of a waiting time that is given step by step."""
        return _shares([int(waited_ns[chosen].sum()) for chosen in self._is])

    def of_tail(self, columns: RequestColumns, sent: BoolArray, begins_ns: IntArray, q: float) -> WaitReasons:
        """Returns what the requests waited for whose time in the queue reaches its q-th percentile.

        Args:
            columns: all requests.
            sent: which of them count.
            begins_ns: where each step begins to count.
            q: the percentile, 0 to 100.
        """
        waits, exists, _ = request_latency(columns, "queue")
        chosen = sent & exists
        least = Sample(waits[chosen]).percentile(q)
        if least is None or not self._is_one_engine or not len(self._end_ns):
            return _shares([0, 0, 0])
        tail = chosen & (waits > 0) & (waits >= least)
        start = columns.arrival_ns[tail]
        end = start + waits[tail]
        return _shares([self._time_in(begins_ns, reason, start, end) for reason in self._is])

    def _time_in(self, begins_ns: IntArray, reason: BoolArray, start_ns: IntArray, end_ns: IntArray) -> int:
        """Sums, over stretches of time, how much of each lies in the steps of one reason."""
        length = np.where(reason, self._end_ns - begins_ns, 0)
        until = np.concatenate([[0], np.cumsum(length)])

        def before(times: IntArray) -> IntArray:
            step = np.searchsorted(self._end_ns, times, side="left")
            within = np.minimum(step, len(length) - 1)
            part = np.clip(times - begins_ns[within], 0, length[within])
            return until[step] + np.where(step < len(length), part, 0)

        return int((before(end_ns) - before(start_ns)).sum())


def _shares(times: list[int]) -> WaitReasons:
    total = sum(times)
    return WaitReasons(*(time / total for time in times)) if total else WaitReasons(0.0, 0.0, 0.0)
