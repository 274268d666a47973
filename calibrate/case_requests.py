"""The requests of a random scheduler case: their prompts, lengths, times, and the clients who give up.

Standard library only, as `schedule_cases.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(slots=True)
class CasePlan:
    """A case in the making: the flags, and how its requests are to be drawn."""

    rng: random.Random
    engine: Json
    num_requests: int
    workload: str = "independent"  # or shared, repeated, sessions
    pool: tuple[float, float] = (3.0, 20.0)  # blocks, in units of what one request of max_model_len needs
    max_prompt: int = 360  # tokens
    max_output: int = 56  # tokens
    num_prefixes: int = 3
    gap_us: tuple[float, float] = (1_000, 20_000)  # mean time between arrivals, before the load is drawn
    burst: int = 1  # requests that arrive at the same time, at most
    abort_share: float = 0.0
    num_priorities: int = 1
    exceed_max_model_len: float = 0.0  # share of requests whose prompt and max_tokens exceed it together
    requests: list[Json] = field(default_factory=list)


def draw_requests(plan: CasePlan) -> None:
    """Draws the requests of a case whose flags are settled, in the order in which vLLM would break ties."""
    if plan.workload == "sessions":
        _draw_sessions(plan)
    else:
        _draw_single_requests(plan)
    _draw_aborts(plan)


def _arrivals(plan: CasePlan) -> Iterator[int]:
    """Yields times of arrival in microseconds: exponential gaps, several at the same time where there are bursts."""
    rng = plan.rng
    mean_us = rng.uniform(*plan.gap_us) * rng.choice([0.1, 0.4, 1, 1])
    grid_us = rng.choice([1, 1, 1_000])  # whole milliseconds: exactly when steps end, where those last as long
    now = 0.0
    while True:
        size = rng.randint(1, plan.burst)
        now += rng.expovariate(1 / (mean_us * size)) if rng.random() < 0.97 else 0
        for _ in range(size):
            yield int(now / grid_us) * grid_us


def _draw_single_requests(plan: CasePlan) -> None:
    rng = plan.rng
    longest = plan.engine["max_model_len"] - 1
    prefixes = [[1_000 + i, min(_draw_length(plan, 250), longest)] for i in range(plan.num_prefixes)]
    repeated = [[[2_000 + i, _draw_length(plan, plan.max_prompt)]] for i in range(plan.num_prefixes + 2)]
    for i, arrival_us in zip(range(plan.num_requests), _arrivals(plan), strict=False):
        prompt = [[i, _draw_length(plan, plan.max_prompt)]]
        if plan.workload == "repeated" and rng.random() < 0.8:
            prompt = rng.choice(repeated)
        elif plan.workload == "shared" and rng.random() < 0.9:
            prefix = rng.choice(prefixes)
            own = min(_draw_length(plan, 60), longest - prefix[1])
            prompt = [prefix, [i, own]] if own > 0 and rng.random() < 0.9 else [prefix]
        _add_request(plan, f"r{i}", prompt, _num_tokens(prompt), {"arrival_us": arrival_us})


def _draw_sessions(plan: CasePlan) -> None:
    """Draws users who send turns, each with all that was said before; now and then one turn has two answers."""
    rng = plan.rng
    longest = plan.engine["max_model_len"] - 1
    systems = [[5_000 + i, min(_draw_length(plan, 100), longest // 2)] for i in range(plan.num_prefixes)]
    arrivals = _arrivals(plan)
    user = 0
    while len(plan.requests) < plan.num_requests:
        prompt: list[list[Any]] = [rng.choice(systems)]
        num_tokens = prompt[0][1]
        when: Json = {"arrival_us": next(arrivals)}
        for turn in range(rng.randint(1, 6)):
            own = _draw_length(plan, plan.max_prompt)
            if num_tokens + own > longest:
                break
            prompt = [*prompt, [10_000 + 10 * user + turn, own]]
            num_tokens += own
            name = f"u{user}t{turn}"
            max_tokens = _add_request(plan, name, prompt, num_tokens, when)
            if rng.random() < 0.05:
                _add_request(plan, f"{name}b", prompt, num_tokens, when)
            when = {"after": [name, rng.choice([0, 0, 1, 1_000, 20_000, 100_000])]}
            prompt = [*prompt, ["out", name]]
            num_tokens += min(max_tokens, longest + 1 - num_tokens)
        user += 1


def _draw_length(plan: CasePlan, most: int) -> int:
    """Returns a prompt length, from 1 to what max_model_len leaves: often at or beside a multiple of the block size."""
    rng, engine = plan.rng, plan.engine
    most = min(most, engine["max_model_len"] - 1)
    length = rng.randint(1, most)
    near = rng.random()
    if near < 0.35:
        length = length // engine["block_size"] * engine["block_size"] + rng.choice([-1, 0, 0, 1])
    elif near < 0.45:
        length = engine["max_num_batched_tokens"] * rng.randint(1, 2) + rng.choice([-1, 0, 1])
    elif near < 0.5:
        length = most
    return max(1, min(length, most))


def _num_tokens(prompt: list[list[int]]) -> int:
    return sum(length for _, length in prompt)


def _add_request(plan: CasePlan, name: str, prompt: list[list[Any]], num_tokens: int, when: Json) -> int:
    """Adds a request; returns its max_tokens."""
    rng = plan.rng
    max_tokens = 1 if rng.random() < 0.08 else rng.randint(1, plan.max_output)
    if rng.random() >= plan.exceed_max_model_len:
        max_tokens = max(1, min(max_tokens, plan.engine["max_model_len"] - num_tokens))
    request: Json = {"id": name, "prompt": prompt, "max_tokens": max_tokens} | when
    if plan.num_priorities > 1:
        request["priority"] = rng.randrange(plan.num_priorities)
    plan.requests.append(request)
    return max_tokens


def _draw_aborts(plan: CasePlan) -> None:
    """Lets clients give up: at once, a while after they arrived, or many at the same moment."""
    rng = plan.rng
    last_us = max((r.get("arrival_us", 0) for r in plan.requests), default=0)
    grid_us = rng.choice([1, 5_000, 40_000])
    for request in plan.requests:
        if rng.random() < plan.abort_share:
            start_us = request.get("arrival_us", rng.randint(0, last_us + 1))
            wait_us = rng.choice([0, 1, 3_000, rng.randint(0, 20_000), rng.randint(0, 300_000)])
            request["abort_us"] = -(-(start_us + wait_us) // grid_us) * grid_us
