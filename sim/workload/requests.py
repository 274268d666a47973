"""Requests that stand alone, one after the other: where open and closed loops take theirs from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sim.workload.client import ClientRequest
from sim.workload.random import Draws, IntSampler, random_stream
from sim.workload.streams import SharedPrefix, TokenStreams


class RequestSource(Protocol):
    """Requests in the order in which their clients want to send them."""

    next_ns: int | None
    """When the next one is wanted; None: there are no more."""

    def take(self, request_id: int, sent_ns: int) -> ClientRequest:
        """Returns the next request, which is sent at `sent_ns` (≥ next_ns), and goes on to the one after it."""


@dataclass(frozen=True, slots=True)
class OneShotClass:
    """A class of requests that stand alone.

    Attributes:
        name: as in the scenario.
        share: its weight among the classes.
        prompt_tokens: length of the text after the shared prefixes.
        output_tokens: length of the answer.
        max_tokens: what the client asks for at most; None: just the length of the answer, as benchmarks do.
        prefixes: what every prompt begins with.
        priority: vLLM's; lower is earlier.
    """

    name: str
    share: float
    prompt_tokens: IntSampler
    output_tokens: IntSampler
    max_tokens: int | None = None
    prefixes: tuple[SharedPrefix, ...] = ()
    priority: int = 0


class DrawnRequests:
    """Requests with drawn lengths; request k is the same whatever the arrival times.

    Args:
        classes: each request is of one of these, drawn by their shares.
        arrivals: when they are wanted, ascending, in nanoseconds.
        seed: of the run.
        timeout_ns: the clients' patience.
    """

    def __init__(
        self, classes: Sequence[OneShotClass], arrivals: Iterator[int], seed: int, timeout_ns: int | None
    ) -> None:
        self._arrivals = arrivals
        self._timeout_ns = timeout_ns
        self._classes = tuple(classes)
        self._streams = TokenStreams()
        self._class_ids = Draws(_choice([c.share for c in classes]), random_stream(seed, "classes"))
        self._prompts = [Draws(c.prompt_tokens, random_stream(seed, "prompt_tokens", c.name)) for c in classes]
        self._outputs = [Draws(c.output_tokens, random_stream(seed, "output_tokens", c.name)) for c in classes]
        self.next_ns = next(arrivals, None)

    def take(self, request_id: int, sent_ns: int) -> ClientRequest:
        """Returns the next request (see `RequestSource`)."""
        assert self.next_ns is not None
        queued_ns, self.next_ns = self.next_ns, next(self._arrivals, None)
        class_id = self._class_ids.one() if len(self._classes) > 1 else 0
        kind = self._classes[class_id]
        streams = self._streams
        own = (streams.fresh(), self._prompts[class_id].one())
        output_tokens = self._outputs[class_id].one()
        max_tokens = output_tokens if kind.max_tokens is None else kind.max_tokens
        # Nobody has a team or a second request here: only what is shared by all is shared.
        shared = tuple(streams.of(prefix, request_id, request_id) for prefix in kind.prefixes)
        return ClientRequest(
            request_id=request_id,
            prompt=(*shared, own),
            num_prompt_tokens=own[1] + sum(length for _, length in shared),
            max_tokens=max_tokens,
            output_tokens=min(output_tokens, max_tokens),
            output_stream=streams.fresh(),
            class_id=class_id,
            queued_ns=queued_ns,
            sent_ns=sent_ns,
            timeout_ns=self._timeout_ns,
            priority=kind.priority,
        )


def _choice(shares: Sequence[float]) -> IntSampler:
    """Draws an index with probability proportional to its share."""
    bounds = np.cumsum(shares) / np.sum(shares)

    def draw(generator: Generator, n: int) -> NDArray[np.int64]:
        return np.searchsorted(bounds[:-1], generator.random(n), side="right").astype(np.int64)

    return draw
