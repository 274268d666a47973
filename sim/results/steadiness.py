"""Two questions about a run: did its queue grow all the time (overload), and do its logs agree (Little's law)?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.records import Outcome, RunRecord
from sim.results.columns import RequestColumns, as_array
from sim.results.percentiles import IntArray
from sim.results.window import Window

_NUM_BATCHES = 10
_SAMPLES_PER_BATCH = 20
_MIN_RISING_PAIRS = 27  # Mann–Kendall's S of ten values: 27 of 45 has a one-sided chance of 0.8 % without a trend
_GIVEN_UP_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Overload:
    """Why a run is not in a steady state.

    Attributes:
        arrived: requests sent in the window.
        completed: requests that finished in the window.
        in_system_start: requests in the server at its start.
        in_system_end: requests in the server at its end.
        sentence: the finding for a person.
    """

    arrived: int
    completed: int
    in_system_start: int
    in_system_end: int
    sentence: str


def find_overload(columns: RequestColumns, window: Window) -> Overload | None:
    """Recognises a server that is offered more than it completes, or returns None.

    Two signs, each enough. (1) The number of requests in the server grows with the run: it rises over ten equal parts
    of the window (Mann–Kendall test, 1 %) and ends higher by more than chance moves it, 2·√arrivals, where a queue at
    exactly its capacity wanders by about √(2·arrivals). (2) The queue stays bounded only because clients give up or
    are turned away: more than 5 % of the requests time out or get a 503.

    A finite workload has an end, not a steady state: never overloaded.
    """
    if window.finite or not window.length_ns:
        return None
    left = np.where(columns.outcome == int(Outcome.UNFINISHED), np.iinfo(np.int64).max, columns.known_until_ns)
    sent, left = np.sort(columns.sent_ns), np.sort(left)
    chosen = (columns.sent_ns >= window.start_ns) & (columns.sent_ns <= window.end_ns)
    finished_at = columns.finish_ns[columns.ended(Outcome.FINISHED)]
    counts = _in_system(sent, left, np.array([window.start_ns, window.end_ns]))
    found = {
        "arrived": int(chosen.sum()),
        "completed": int(((finished_at >= window.start_ns) & (finished_at <= window.end_ns)).sum()),
        "in_system_start": int(counts[0]),
        "in_system_end": int(counts[1]),
    }
    given_up = int((chosen & columns.ended(Outcome.TIMED_OUT, Outcome.REJECTED)).sum())
    sentence = _growth_sentence(sent, left, window, found) or _given_up_sentence(given_up, window, found)
    return Overload(**found, sentence=sentence) if sentence else None


def _growth_sentence(sent: IntArray, left: IntArray, window: Window, found: dict[str, int]) -> str | None:
    growth = found["in_system_end"] - found["in_system_start"]
    if growth <= 2 * math.sqrt(found["arrived"]):
        return None
    instants = np.linspace(window.start_ns, window.end_ns, _NUM_BATCHES * _SAMPLES_PER_BATCH, dtype=np.int64)
    batches = _in_system(sent, left, instants).reshape(_NUM_BATCHES, _SAMPLES_PER_BATCH).mean(axis=1)
    rising = sum(int(np.sign(batches[index + 1 :] - batches[index]).sum()) for index in range(_NUM_BATCHES))
    if rising < _MIN_RISING_PAIRS:
        return None
    return (
        f"overloaded: {found['arrived'] / window.length_s:.3g} requests/s arrive, "
        f"{found['completed'] / window.length_s:.3g} are completed; the number in the server grew from "
        f"{found['in_system_start']} to {found['in_system_end']} in the window and grows as long as the load lasts"
    )


def _given_up_sentence(given_up: int, window: Window, found: dict[str, int]) -> str | None:
    if not given_up or given_up <= _GIVEN_UP_SHARE * found["arrived"]:
        return None
    return (
        f"overloaded: {100 * given_up / found['arrived']:.3g} % of the requests time out or are turned away; "
        f"{found['arrived'] / window.length_s:.3g} requests/s arrive, "
        f"{found['completed'] / window.length_s:.3g} are completed"
    )


def _in_system(sent: IntArray, left: IntArray, instants: IntArray) -> IntArray:
    """Returns how many requests are with the server at each instant; `sent` and `left` are sorted."""
    return np.searchsorted(sent, instants, side="right") - np.searchsorted(left, instants, side="right")


@dataclass(frozen=True, slots=True)
class LittlesLaw:
    """L = λ·W from two independent logs of one run.

    Attributes:
        from_steps: L, the time average of running + waiting in the step log.
        from_requests: λ·W, arrivals per second times mean seconds in the engine, from the request records.
        slack: how far the two may lie apart, since the step log sees a request only at the next scheduling.
    """

    from_steps: float
    from_requests: float
    slack: float

    @property
    def holds(self) -> bool:
        """Whether the two agree."""
        return abs(self.from_steps - self.from_requests) <= self.slack


def littles_law(run: RunRecord) -> LittlesLaw:
    """Compares the two logs over the whole run.

    Each request may be missed by the step log for at most two of the longest steps at its start (asynchronous
    scheduling) and one at its end. Clients are taken to see the end of a step at once.
    """
    columns = RequestColumns.of(run)
    inside = (columns.arrival_ns >= 0) & ~columns.ended(Outcome.REFUSED, Outcome.REJECTED, Outcome.NEVER_FITS)
    in_engine_ns = int((columns.known_until_ns - columns.arrival_ns)[inside].sum())
    start, end = as_array(run.steps.start_ns), as_array(run.steps.end_ns)
    present = as_array(run.steps.num_running) + as_array(run.steps.num_waiting)
    replica = as_array(run.steps.replica)
    seen_ns, longest = 0, 0
    for number in range(run.num_replicas):
        own = replica == number
        if own.any():
            begin = np.maximum(start[own], np.concatenate([[0], end[own][:-1]]))
            seen_ns += int(((end[own] - begin) * present[own]).sum())
            longest = max(longest, int((end[own] - start[own]).max()))
    horizon = max(run.end_ns, 1)
    return LittlesLaw(
        from_steps=seen_ns / horizon,
        from_requests=in_engine_ns / horizon,
        slack=int(inside.sum()) * 3 * longest / horizon,
    )
