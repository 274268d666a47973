"""How a router chooses a replica: the rules of the routers that people put in front of vLLM.

Every rule sees the ready replicas alone and decides at the moment of sending. What a real router reads from metrics it
knows only as of its last scrape (llm-d: 50 ms ago); here it is as of the replica's last step.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from sim.core.request import Request
from sim.scenario.fleet import Router
from sim.workload.client import ClientRequest

_STATS_NS = 100_000_000  # how often the coordinator tells the engines' counts
_POINTS = 160  # of a replica on the ring: uhashring's ketama has 40 hashes of four points each
_BLOCK_TOKENS = 64
_MOST_BLOCKS = 131_072 // _BLOCK_TOKENS  # llm-d looks at the first 131,072 tokens of a prompt
_PREFIX_WEIGHT, _QUEUE_WEIGHT, _KV_WEIGHT = 3.0, 2.0, 2.0


class Endpoint(Protocol):
    """What a router knows of a replica."""

    @property
    def number(self) -> int:
        """The replica's number: it keeps it when it restarts."""

    @property
    def num_requests(self) -> int:
        """Requests that the router has sent there and that have not ended."""

    @property
    def num_running(self) -> int:
        """Requests being served (`vllm:num_requests_running`)."""

    @property
    def num_waiting(self) -> int:
        """Requests in the engine's queue (`vllm:num_requests_waiting`)."""

    @property
    def kv_use(self) -> float:
        """Share of the KV cache held by requests (`vllm:kv_cache_usage_perc`)."""


class Routing(Protocol):
    """A rule."""

    def choose(self, client: ClientRequest, endpoints: Sequence[Endpoint]) -> int:
        """Returns the number of the replica that gets a request.

        Args:
            client: the request.
            endpoints: the ready replicas, at least one, by number.
        """

    def forget(self, number: int) -> None:
        """Takes note that a replica has lost its cache."""


def routing(router: Router, *, cached_tokens: int) -> Routing:
    """Returns a fresh rule of that name.

    Args:
        router: the name.
        cached_tokens: what the KV cache of a replica holds, as its metrics tell.
    """
    match router:
        case "round_robin":
            return RoundRobin()
        case "least_requests":
            return LeastRequests()
        case "session_affinity":
            return SessionAffinity()
        case "prefix_aware":
            return PrefixAware(cached_tokens)


class RoundRobin:
    """One after the other.

    Source: `RoundRobinRouter` of the vLLM production stack: a counter, modulo the number of endpoints in order.
    """

    def __init__(self) -> None:
        self._count = 0

    def choose(self, client: ClientRequest, endpoints: Sequence[Endpoint]) -> int:  # noqa: ARG002 - see Routing
        """Returns the next replica."""
        chosen = endpoints[self._count % len(endpoints)]
        self._count += 1
        return chosen.number

    def forget(self, number: int) -> None:
        """Nothing is kept."""


class LeastRequests:
    """The replica with the fewest requests in flight; among equals, in turns.

    Source: `least_request` with a full scan of the hosts, as Envoy does it and as the active-request-scorer of llm-d's
    router ranks endpoints. (The production stack's own rule compares requests per second, which does not see that a
    request is long.)
    """

    def __init__(self) -> None:
        self._next = 0

    def choose(self, client: ClientRequest, endpoints: Sequence[Endpoint]) -> int:  # noqa: ARG002 - see Routing
        """Returns the least loaded replica."""
        fewest = min(endpoint.num_requests for endpoint in endpoints)
        idle = [endpoint for endpoint in endpoints if endpoint.num_requests == fewest]
        chosen = next((endpoint for endpoint in idle if endpoint.number >= self._next), idle[0])
        self._next = chosen.number + 1
        return chosen.number

    def forget(self, number: int) -> None:
        """Nothing is kept."""


class SessionAffinity:
    """A user's requests all go to one replica, chosen by a hash ring; a request of nobody goes where least is to do.

    Source: `SessionRouter` of the vLLM production stack (header `x-user-id` on a consistent hash ring): when a replica
    goes, only its own users move, and when it comes back they do too.
    """

    def __init__(self) -> None:
        self._rings: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self._least = LeastRequests()

    def choose(self, client: ClientRequest, endpoints: Sequence[Endpoint]) -> int:
        """Returns the user's replica."""
        if client.user_id < 0:
            return self._least.choose(client, endpoints)
        ring = self._ring(tuple(endpoint.number for endpoint in endpoints))
        place = bisect_left(ring, (_hash(f"user {client.user_id}"), 0))
        return ring[place % len(ring)][1]

    def forget(self, number: int) -> None:
        """Nothing is kept of a cache."""

    def _ring(self, numbers: tuple[int, ...]) -> list[tuple[int, int]]:
        ring = self._rings.get(numbers)
        if ring is None:
            points = [(_hash(f"replica {number} {point}"), number) for number in numbers for point in range(_POINTS)]
            ring = self._rings[numbers] = sorted(points)
        return ring


class InternalBalance:
    """vLLM's own, between the data-parallel engines of one server: the lowest score, scanned from one engine on a turn.

    Since 0.32 the score is the larger of the client's own requests in flight and the engine's waiting + running, and a
    queue counts up to three times more as the KV cache fills beyond half. Before, it was 4 x waiting + running. Counts
    of the engines are those of the last 100 ms tick; what is sent since then counts as waiting. Source:
    `DPLBAsyncMPClient.get_core_engine_for_request` (vllm/v1/engine/core_client.py) of 0.32, and its documentation for
    the older rule.

    Args:
        by_requests_in_flight: the rule since 0.32.
    """

    def __init__(self, *, by_requests_in_flight: bool) -> None:
        self._is_new = by_requests_in_flight
        self._counts: list[tuple[int, int, float]] = []  # waiting, running, KV use of each engine
        self._next_update_ns = 0
        self._start = 0

    def choose(self, client: ClientRequest, endpoints: Sequence[Endpoint]) -> int:
        """Returns the engine with the lowest score."""
        if client.sent_ns >= self._next_update_ns or not self._counts:
            self._counts = [(each.num_waiting, each.num_running, each.kv_use) for each in endpoints]
            self._next_update_ns = client.sent_ns - client.sent_ns % _STATS_NS + _STATS_NS
        order = [(self._start + place) % len(endpoints) for place in range(len(endpoints))]
        chosen = min(order, key=lambda place: self._score(endpoints[place], *self._counts[place]))
        waiting, running, kv_use = self._counts[chosen]
        self._counts[chosen] = (waiting + 1, running, kv_use)
        if self._is_new:
            self._start = (self._start + 1) % len(endpoints)
        return endpoints[chosen].number

    def forget(self, number: int) -> None:
        """Nothing is kept of a cache."""

    def _score(self, endpoint: Endpoint, waiting: int, running: int, kv_use: float) -> float:
        if not self._is_new:
            return 4 * waiting + running
        return max(endpoint.num_requests, waiting + running) + waiting * 6.0 * max(0.0, kv_use - 0.5)


def _hash(text: str) -> int:
    """Returns a number that is the same on every machine, which Python's own hash of texts is not."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class PrefixAware:
    """The replica that was sent most of this prompt's beginning, unless its queue or its cache is full.

    Source: llm-d's router with its default scorers: 3 x the share of the prompt's blocks that were sent there before
    (`prefix-cache-scorer` over an approximate index, least recently used first forgotten), 2 x the shortness of its
    queue between the longest and the shortest (`queue-scorer`), 2 x its free KV cache (`kv-cache-utilization-scorer`).
    The highest sum wins; llm-d draws among equals, here they take turns. The index holds as many tokens as the
    replica's cache (`autoTune`).

    Args:
        cached_tokens: what the KV cache of a replica holds.
    """

    def __init__(self, cached_tokens: int) -> None:
        self._capacity = max(1, cached_tokens // _BLOCK_TOKENS)
        self._sent: dict[int, OrderedDict[int, None]] = {}  # replica -> block hashes, the latest last
        self._latest_of_user: dict[int, Request] = {}
        self._least = LeastRequests()

    def choose(self, client: ClientRequest, endpoints: Sequence[Endpoint]) -> int:
        """Returns the replica with the highest score, and remembers that it gets the prompt."""
        hashes = self._hashes(client)
        waiting = [endpoint.num_waiting for endpoint in endpoints]
        longest, spread = max(waiting), max(waiting) - min(waiting)
        scores = []
        for endpoint in endpoints:
            prefix = self._match(endpoint.number, hashes) / len(hashes) if hashes else 0.0
            queue = (longest - endpoint.num_waiting) / spread if spread else 1.0
            scores.append(_PREFIX_WEIGHT * prefix + _QUEUE_WEIGHT * queue + _KV_WEIGHT * (1.0 - endpoint.kv_use))
        best = max(scores)
        equals = [endpoint for endpoint, score in zip(endpoints, scores, strict=True) if score == best]
        chosen = self._least.choose(client, equals) if len(equals) > 1 else equals[0].number
        self._remember(chosen, hashes)
        return chosen

    def forget(self, number: int) -> None:
        """Forgets what a replica was sent."""
        self._sent.pop(number, None)

    def _hashes(self, client: ClientRequest) -> list[int]:
        """Returns the chained hashes of the prompt's whole blocks."""
        request = Request(client.request_id, client.prompt, client.max_tokens, client.sent_ns, client.output_stream)
        if client.user_id >= 0:
            previous = self._latest_of_user.get(client.user_id)
            if previous is not None and client.turn:
                request.continue_from(previous, _BLOCK_TOKENS)
            self._latest_of_user[client.user_id] = request
        num_blocks = min(client.num_prompt_tokens // _BLOCK_TOKENS, _MOST_BLOCKS)
        return request.hash_blocks(num_blocks, _BLOCK_TOKENS)[:num_blocks]

    def _match(self, number: int, hashes: Sequence[int]) -> int:
        """Returns how many of the first blocks a replica was sent."""
        sent = self._sent.get(number)
        if sent is None:
            return 0
        for count, block_hash in enumerate(hashes):
            if block_hash not in sent:
                return count
        return len(hashes)

    def _remember(self, number: int, hashes: Sequence[int]) -> None:
        sent = self._sent.setdefault(number, OrderedDict())
        for block_hash in hashes:
            sent[block_hash] = None
            sent.move_to_end(block_hash)
        while len(sent) > self._capacity:
            sent.popitem(last=False)
