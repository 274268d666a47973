"""What a calibration sends: a few minutes of requests that show every term of a step's cost.

Single requests of growing length (prompt cost, the client's latency), closed loops at growing concurrency with mixed
lengths (decodes, contexts), long prompts beside long answers (mixed steps), shared prefixes (prefill after a hit), and
one burst that saturates the server: low loads alone do not show what capacity is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from sim.workload.client import ClientRequest, Prompt, Workload
from sim.workload.closed_loop import ClosedLoop
from sim.workload.streams import TokenStreams

Band = Literal["low", "middle", "saturated"]

_FIRST_PREFIX_STREAM = 1 << 50
_LONGEST_SINGLE = 16_384
_USUAL_PROMPT = 1_024
_USUAL_ANSWER = 96
_LEAST_BURST = 8
_TURNS_PER_SEAT = 3  # requests a seat of a closed loop serves: start and end are a third of it


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request: the stream and length of a shared prefix (0 for none), its own prompt tokens, its answer."""

    own_tokens: int
    output_tokens: int
    prefix_stream: int = -1
    prefix_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and answer together."""
        return self.prefix_tokens + self.own_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the plan.

    Attributes:
        name: for files and tables.
        band: how loaded the server is by it.
        requests: in the order of sending.
        max_concurrency: requests in flight; as many as there are requests is a burst.
        weight: its share of the time, among the phases.
    """

    name: str
    band: Band
    requests: tuple[PlannedRequest, ...]
    max_concurrency: int
    weight: float = 1.0

    @property
    def is_burst(self) -> bool:
        """Whether all requests are sent at once."""
        return self.max_concurrency >= len(self.requests)

    def within(self, limit_s: float, tokens_per_s: float | None) -> Phase:
        """Returns the phase; of a burst, which cannot be cut short once sent, as much as the time is likely to allow.

        Args:
            limit_s: the time.
            tokens_per_s: prompt and output tokens a second of the phase before; None: unknown.
        """
        if not self.is_burst or tokens_per_s is None:
            return self
        tokens, kept = 0, 0
        for request in self.requests:
            tokens += request.num_tokens
            if tokens > limit_s * tokens_per_s and kept >= _LEAST_BURST:
                break
            kept += 1
        return replace(self, requests=self.requests[:kept], max_concurrency=kept)

    def workload(self) -> Workload:
        """Returns a fresh workload of these requests: the same for the live server and for the simulation."""
        return ClosedLoop(_Listed(self.requests), (self.name,), self.max_concurrency)


def make_plan(max_model_len: int, max_concurrency: int, seed: int = 0) -> list[Phase]:
    """Returns the phases, in the order in which they are worth having.

    Args:
        max_model_len: prompt and answer of a request at most.
        max_concurrency: requests in flight in the largest closed loop; the burst has twice as many.
        seed: of the lengths.
    """
    rng = random.Random(seed)
    prompt = max(2, min(_USUAL_PROMPT, max_model_len // 4))
    answer = max(2, min(_USUAL_ANSWER, max_model_len // 8))
    phases = [_single(max_model_len, answer)]
    seats = _ladder(max_concurrency)
    phases += [_closed_loop(rng, count, prompt, answer, max_concurrency) for count in seats]
    burst = tuple(_mixed_lengths(rng, 2 * max_concurrency, prompt, answer))
    phases.append(Phase("saturated", "saturated", burst, len(burst), weight=3.0))
    phases.append(_long_beside_short(rng, prompt, answer))
    phases.append(_shared_prefix(rng, prompt, answer))
    return phases


def _single(max_model_len: int, answer: int) -> Phase:
    """One request at a time; each length twice, for the second time shows the noise."""
    length, lengths = 32, []
    while length <= min(_LONGEST_SINGLE, max_model_len - answer):
        lengths += [length, length]
        length *= 4 if length < 512 else 2
    requests = tuple(PlannedRequest(max(1, length), min(answer, 24)) for length in lengths or [1])
    return Phase("single", "low", requests, 1)


def _ladder(max_concurrency: int) -> list[int]:
    counts, count = [], 2
    while count < max_concurrency:
        counts.append(count)
        count *= 2
    return [*counts, max_concurrency] if max_concurrency > 1 else []


def _closed_loop(rng: random.Random, seats: int, prompt: int, answer: int, most_seats: int) -> Phase:
    requests = tuple(_mixed_lengths(rng, _TURNS_PER_SEAT * seats, prompt, answer))
    band: Band = "low" if seats * 8 <= most_seats else "middle"
    return Phase(f"concurrency-{seats}", band, requests, seats)


def _mixed_lengths(rng: random.Random, count: int, prompt: int, answer: int) -> Iterator[PlannedRequest]:
    for _ in range(count):
        yield PlannedRequest(rng.randint(max(1, prompt // 8), prompt), rng.randint(max(1, answer // 6), answer))


def _long_beside_short(rng: random.Random, prompt: int, answer: int) -> Phase:
    """Long prompts with short answers among short prompts with long answers: decodes that wait for chunks."""
    requests = []
    for i in range(24):
        if i % 3:
            requests.append(PlannedRequest(rng.randint(max(1, prompt // 16), max(1, prompt // 8)), answer))
        else:
            requests.append(PlannedRequest(2 * prompt, max(1, answer // 12)))
    return Phase("long-beside-short", "middle", tuple(requests), 6)


def _shared_prefix(rng: random.Random, prompt: int, answer: int) -> Phase:
    requests = [
        PlannedRequest(
            rng.randint(max(1, prompt // 8), max(1, prompt // 2)),
            max(1, answer // 3),
            prefix_stream=_FIRST_PREFIX_STREAM + i % 4,
            prefix_tokens=prompt,
        )
        for i in range(20)
    ]
    return Phase("shared-prefix", "low", tuple(requests), 4)


class _Listed:
    """Requests that are all wanted at once, in their order (a `RequestSource`)."""

    def __init__(self, requests: tuple[PlannedRequest, ...]) -> None:
        self._requests = requests
        self._streams = TokenStreams(first=0)
        self._row = 0
        self.next_ns: int | None = 0 if requests else None

    def take(self, request_id: int, sent_ns: int) -> ClientRequest:
        planned = self._requests[self._row]
        self._row += 1
        if self._row == len(self._requests):
            self.next_ns = None
        prefix = ((planned.prefix_stream, planned.prefix_tokens),) if planned.prefix_tokens else ()
        prompt: Prompt = (*prefix, (self._streams.fresh(), planned.own_tokens))
        return ClientRequest(
            request_id=request_id,
            prompt=prompt,
            num_prompt_tokens=planned.prefix_tokens + planned.own_tokens,
            max_tokens=planned.output_tokens,
            output_tokens=planned.output_tokens,
            output_stream=self._streams.fresh(),
            class_id=0,
            queued_ns=0,
            sent_ns=sent_ns,
        )


def time_shares(phases: list[Phase], total_s: float) -> list[float]:
    """Returns how long each phase may send, so that all fit into the total; what one leaves, later ones get."""
    weights = [phase.weight for phase in phases]
    ends = [total_s * sum(weights[: i + 1]) / sum(weights) for i in range(len(weights))]
    return [end - begin for begin, end in pairwise([0.0, *ends])]
