"""The request records of a run as columns, so that a whole run is summed up by array arithmetic."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sim.records import Outcome, RunRecord
from sim.results.percentiles import IntArray

BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """One int64 array a field of `RequestRecord`; -1 means "never happened".

    `known_until_ns` is how far the client's knowledge of the request goes: its end, or the end of the run.
    """

    class_id: IntArray
    sent_ns: IntArray
    arrival_ns: IntArray
    scheduled_ns: IntArray
    first_token_ns: IntArray
    finish_ns: IntArray
    known_until_ns: IntArray
    num_prompt_tokens: IntArray
    num_output_tokens: IntArray
    num_cached_tokens: IntArray
    num_preemptions: IntArray
    outcome: IntArray

    @classmethod
    def of(cls, run: RunRecord) -> RequestColumns:
        """Reads the columns from a run."""
        finish = as_array(run.requests.column("finish_ns"))
        return cls(
            finish_ns=finish,
            known_until_ns=np.where(finish >= 0, finish, run.end_ns),
            **{name: as_array(run.requests.column(name)) for name in _NAMES},
        )

    def ended(self, *outcomes: Outcome) -> BoolArray:
        """Returns which requests ended in one of these ways."""
        chosen = np.zeros(len(self.outcome), dtype=np.bool_)
        for outcome in outcomes:
            chosen |= self.outcome == int(outcome)
        return chosen


_NAMES = tuple(name for name in RequestColumns.__dataclass_fields__ if name not in {"finish_ns", "known_until_ns"})


def as_array(column: array[int]) -> IntArray:
    """Returns a column of a log as an int64 array on the same memory: a view, for reading a run that has ended."""
    view = np.frombuffer(column, dtype=np.int64) if column else np.empty(0, np.int64)
    view.flags.writeable = False
    return view
