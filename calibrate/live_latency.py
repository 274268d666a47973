"""Time outside the engine, seen directly: when the client sent and saw, beside when the engine got and gave.

Both clocks are the machine's monotonic one, so this needs client and server on one machine; where they are not, the
differences make no sense, and nothing is measured. How far apart requests come that were sent at once is seen on the
server's clock alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.observe import PhaseResult
from calibrate.step_record import AddedRequest, StepRecord
from sim.records import Outcome

_MOST_S = 5.0  # more is no latency, but two clocks that have nothing to do with each other
_LEAST_PAIRS = 3


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """What the client waits for besides the engine.

    Attributes:
        request_ns: from the send to the engine, fixed part.
        per_prompt_token_ns: its part that grows with the prompt.
        response_ns: from the end of a step to the client.
        num_requests: how many requests this was seen in; 0: nothing was measured.
        serial_ns: of requests sent at once, how much later than the one before each reached the API server.
    """

    request_ns: float = 0.0
    per_prompt_token_ns: float = 0.0
    response_ns: float = 0.0
    num_requests: int = 0
    serial_ns: float = 0.0


def measure_latency(results: Sequence[PhaseResult], record: StepRecord) -> MeasuredLatency:
    """Returns the client's latency from the requests that found the engine idle.

    A request that arrives while a step runs is taken in when the step ends: that wait is the engine's, and simulated.
    """
    numbers = _added_by_name(record)
    serial_ns = measure_serial_ns(results, record)
    first_token_ns = _first_token_times(record)
    idle_before = _idle_before(record)
    lengths, before, after = [], [], []
    for result in results:
        for name, request in zip(result.live.names, result.live.record.requests, strict=True):
            added = numbers.get(name)
            if added is None or request.outcome is not Outcome.FINISHED or added.number not in idle_before:
                continue
            if added.number not in first_token_ns:
                continue
            start_ns = result.live.start_ns
            lengths.append(request.num_prompt_tokens)
            before.append(added.time_ns - start_ns - request.sent_ns)
            after.append(start_ns + request.first_token_ns - first_token_ns[added.number])
    if len(lengths) < _LEAST_PAIRS or max(map(abs, [*before, *after])) > 1e9 * _MOST_S:
        return MeasuredLatency(serial_ns=serial_ns)
    slope, fixed = _line(np.array(lengths, dtype=np.float64), np.array(before, dtype=np.float64))
    return MeasuredLatency(fixed, slope, max(0.0, float(np.median(after))), len(lengths), serial_ns)


def measure_serial_ns(results: Sequence[PhaseResult], record: StepRecord) -> float:
    """Returns how far apart requests that were sent at once reached the API server, in nanoseconds.

    A closed loop and a burst begin with as many at once as may be in flight. The median of their mean distances: one
    hiccup of the machine is in one of them. 0 where no two were sent at once.
    """
    numbers = _added_by_name(record)
    distances = []
    for result in results:
        names = result.live.names[: result.phase.max_concurrency]
        times = sorted(numbers[name].arrival_ns for name in names if name in numbers)
        if len(times) > 1:
            distances.append((times[-1] - times[0]) / (len(times) - 1))
    return float(np.median(distances)) if distances else 0.0


def _added_by_name(record: StepRecord) -> dict[str, AddedRequest]:
    """Returns the requests by the names that the client gave them; vLLM has put some around it."""
    return {request.name.removeprefix("cmpl-").rsplit("-", 2)[0]: request for request in record.added}


def _first_token_times(record: StepRecord) -> dict[int, int]:
    """Returns when the step ended in which each request's prompt was complete."""
    prompts = {request.number: request.num_prompt_tokens for request in record.added}
    times: dict[int, int] = {}
    for step in record.steps:
        if step.end_ns is None:
            continue
        for number, tokens, context in zip(step.numbers, step.tokens, step.contexts, strict=True):
            if tokens + context >= prompts[number]:
                times.setdefault(number, step.end_ns)
    return times


def _idle_before(record: StepRecord) -> set[int]:
    """Returns the requests that came when nothing else was in the engine."""
    idle: set[int] = set()
    in_engine = 0
    events = [(request.time_ns, 1, request.number) for request in record.added]
    events += [(end.time_ns, 0, end.number) for end in record.ended]
    for _, comes, number in sorted(events):
        if comes and in_engine == 0:
            idle.add(number)
        in_engine += 1 if comes else -1
    return idle


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Returns slope and intercept, neither negative, of the medians at each x: robust against a few slow ones."""
    places = np.unique(x)
    medians = np.array([np.median(y[x == place]) for place in places])
    if len(places) > 1:
        slope, fixed = np.polyfit(places, medians, 1)
        if slope > 0 and fixed > 0:
            return float(slope), float(fixed)
    return 0.0, max(0.0, float(np.median(y)))
