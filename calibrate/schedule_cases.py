"""Random cases for the comparison with the real vLLM scheduler, each from a seed.

A case is what `record_schedule.py` runs on the real engine and `schedule_trace.py` on ours: engine flags, the price of
a step, and requests. Its kind says what it is about:

    python -m calibrate.schedule_cases --seed 1 --count 40 --out DIR [--kind tight] [--num-requests 12]

Standard library only, so that it also runs where vLLM is installed and nothing else of ours is.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from calibrate.case_requests import CasePlan, draw_requests
from sim.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec, get_kv_cache_groups

Json = dict[str, Any]


Trait = Callable[[CasePlan], None]


def generate_case(
    kind: str, seed: int, *, async_scheduling: bool = False, num_requests: int | None = None, num_stages: int = 1
) -> Json:
    """Returns the case that a kind and a seed stand for.

    Args:
        kind: one of `KINDS`.
        seed: the same seed gives the same case.
        async_scheduling: whether the engine schedules one step ahead.
        num_requests: how many requests; None: as many as the kind is meant to have.
        num_stages: of a pipeline, each of which takes the case's price of a step.
    """
    mode = "async" if async_scheduling else "sync"
    if num_stages > 1:
        mode += f"-pp{num_stages}"
    rng = random.Random(f"{kind}-{mode}-{seed}")
    plan = CasePlan(rng, _draw_engine(rng), rng.randint(15, 60))
    for trait in KINDS[kind]:
        trait(plan)
    plan.engine["async_scheduling"] = async_scheduling
    if num_stages > 1:
        plan.engine["pipeline_parallel_size"] = num_stages
    _settle_engine(plan)
    plan.num_requests = num_requests or min(plan.num_requests, _most_requests(plan))
    draw_requests(plan)
    return {
        "name": f"{kind}-{mode}-{seed:06d}",
        "engine": plan.engine,
        "cost_us": _draw_cost(rng),
        "requests": plan.requests,
    }


def random_cases(seed: int, count: int, *, kind: str | None = None, num_requests: int | None = None) -> Iterator[Json]:
    """Yields cases of all kinds in turn (or of one), synchronous and asynchronous, with seeds that follow `seed`.

    Every third pair runs in a pipeline, of two to four stages.
    """
    kinds = tuple(KINDS) if kind is None else (kind,)
    for i in range(count):
        pair = i // 2
        yield generate_case(
            kinds[pair % len(kinds)],
            seed * 1_000 + i,
            async_scheduling=i % 2 == 1,
            num_requests=num_requests,
            num_stages=2 + pair // 3 % 3 if pair % 3 == 2 else 1,
        )


def _draw_engine(rng: random.Random) -> Json:
    return {
        "max_num_seqs": rng.choice([4, 8, 16, 32]),
        "max_num_batched_tokens": rng.choice([48, 64, 128, 256, 512]),
        "max_model_len": 1024,
        "block_size": 16,
    }


def _draw_cost(rng: random.Random) -> Json:
    kind = rng.random()
    if kind < 0.5:
        return {"base": 2_000, "per_token": 10, "per_seq": 20, "per_1k_context": 100}
    if kind < 0.7:
        return {"base": rng.choice([1_000, 3_000])}
    return {
        "base": rng.choice([1, 50, 500, 5_000]),
        "per_token": rng.choice([0, 1, 10, 60]),
        "per_seq": rng.choice([0, 7, 60]),
        "per_1k_context": rng.choice([0, 13, 400]),
    }


def _shared(plan: CasePlan) -> None:
    plan.workload = "shared"
    plan.num_prefixes = plan.rng.randint(2, 4)


def _sessions(plan: CasePlan) -> None:
    plan.workload = "sessions"
    plan.max_prompt = 120
    plan.pool = (1.0, 5.0)


def _tight(plan: CasePlan) -> None:
    plan.pool = (1.0, 1.15)
    plan.engine["max_model_len"] = plan.rng.randint(20, 60) * plan.engine["block_size"]
    plan.max_prompt = 150
    plan.max_output = plan.rng.choice([120, 250])
    plan.gap_us = (500, 5_000)
    plan.workload = plan.rng.choice(["independent", "shared", "repeated"])


def _evict(plan: CasePlan) -> None:
    plan.workload = "shared"
    plan.num_prefixes = plan.rng.randint(6, 10)
    plan.pool = (1.0, 1.6)
    plan.max_output = 30
    plan.gap_us = (5_000, 25_000)


def _bursts(plan: CasePlan) -> None:
    plan.burst = plan.rng.randint(4, 16)
    plan.gap_us = (5_000, 20_000)
    plan.workload = plan.rng.choice(["independent", "repeated"])
    plan.pool = (1.0, 6.0)


def _repeat_full(plan: CasePlan) -> None:
    plan.workload = "repeated"
    plan.max_prompt = 192
    plan.max_output = 30


def _long_prefill(plan: CasePlan) -> None:
    rng, engine = plan.rng, plan.engine
    engine["max_model_len"] = 4096
    engine["long_prefill_token_threshold"] = rng.choice([1, 7, 16, 32, 64, 100])
    engine["long_prefill_token_threshold_adaptive"] = rng.random() < 0.5
    plan.max_prompt = rng.choice([500, 2_500])
    plan.num_requests = min(plan.num_requests, 25)
    plan.pool = (1.0, 4.0)


def _no_chunk(plan: CasePlan) -> None:
    engine = plan.engine
    engine["enable_chunked_prefill"] = False
    engine["max_model_len"] = min(engine["max_model_len"], 512)
    engine["max_num_batched_tokens"] = engine["max_model_len"] + plan.rng.choice([0, 0, 1, 188])


def _priority(plan: CasePlan) -> None:
    plan.engine["policy"] = "priority"
    plan.num_priorities = plan.rng.choice([1, 2, 4])
    plan.gap_us = (1_000, 8_000)
    if plan.rng.random() < 0.5:
        _tight(plan)


def _no_cache(plan: CasePlan) -> None:
    plan.engine["enable_prefix_caching"] = False
    plan.pool = plan.rng.choice([(1.0, 1.2), (2.0, 6.0)])


def _aborts(plan: CasePlan) -> None:
    plan.abort_share = plan.rng.choice([0.15, 0.4, 0.8])
    plan.workload = plan.rng.choice(["independent", "shared", "sessions"])
    plan.pool = plan.rng.choice([(1.0, 1.2), (2.0, 6.0)])


def _gates(plan: CasePlan) -> None:
    rng, engine = plan.rng, plan.engine
    plan.pool = (1.0, 2.0)
    plan.burst = rng.choice([1, 6])
    chosen = rng.sample(["watermark", "scheduler_reserve_full_isl", "max_num_active_seqs"], rng.randint(1, 3))
    if "watermark" in chosen:
        engine["watermark"] = rng.choice([0.01, 0.05, 0.3, 0.9])
    if "scheduler_reserve_full_isl" in chosen:
        engine["scheduler_reserve_full_isl"] = False
    if "max_num_active_seqs" in chosen:
        engine["max_num_active_seqs"] = rng.randint(1, engine["max_num_seqs"])


def _length_cap(plan: CasePlan) -> None:
    plan.engine["max_model_len"] = plan.rng.choice([64, 100, 128, 200])
    plan.exceed_max_model_len = 0.6
    plan.max_prompt = plan.engine["max_model_len"]
    plan.max_output = 100


def _hybrid(plan: CasePlan) -> None:
    rng = plan.rng
    window = rng.choice([1, 2, 15, 16, 17, 32, 33, 64, 128])
    plan.engine["kv_layers"] = rng.choice(
        [
            [["full", 2], ["sliding", 2, window]],
            [["full", 2], ["sliding", 4, window]],
            [["full", 2], ["sliding", 10, window]],
            [["full", 5], ["sliding", 2, window]],
            [["sliding", 5, window], ["full", 4]],
            [["sliding", 3, window]],
            [["full", 1], ["sliding", 1, window], ["sliding", 2, 2 * window]],
        ]
    )
    plan.workload = rng.choice(["independent", "shared", "repeated", "sessions"])
    plan.max_prompt = 140


def _many_prefixes(plan: CasePlan) -> None:
    plan.num_prefixes = plan.rng.randint(6, 10)


def _extremes(plan: CasePlan) -> None:
    """Puts flags at the ends of their ranges, a few at a time."""
    rng, engine = plan.rng, plan.engine
    changes: list[Json] = [
        {"max_num_seqs": 1},
        {"max_num_seqs": 1, "max_num_batched_tokens": rng.choice([1, 2, 17])},
        {"max_num_batched_tokens": engine["max_num_seqs"]},
        {"block_size": rng.choice([1, 2, 4])},
        {"block_size": rng.choice([8, 32, 64, 128])},
        {"long_prefill_token_threshold": 1},
        {"watermark": 0.9},
        {"max_num_active_seqs": 1},
        {"max_num_batched_tokens": 4_096, "max_num_seqs": 64},
    ]
    for change in rng.sample(changes, rng.randint(1, 3)):
        engine |= change
    engine["max_model_len"] = rng.choice([60, 128, 300])
    plan.max_prompt = rng.choice([40, 300])
    plan.max_output = rng.choice([1, 5, 60])
    plan.pool = rng.choice([(1.0, 1.0), (1.0, 1.3), (2.0, 5.0)])


def _stress(plan: CasePlan) -> None:
    """Makes a long run under pressure: hundreds of users, small blocks, a pool that never suffices."""
    rng, engine = plan.rng, plan.engine
    plan.num_requests = rng.randint(600, 1_500)
    engine["block_size"] = rng.choice([1, 2, 4, 8, 16])
    engine["max_num_seqs"] = rng.choice([8, 16, 24, 48])
    engine["max_num_batched_tokens"] = rng.choice([48, 64, 100, 160, 300])
    engine["max_model_len"] = rng.choice([128, 200, 256])
    plan.workload = rng.choice(["sessions", "sessions", "shared", "repeated"])
    plan.num_prefixes = rng.randint(4, 8)
    plan.pool = (1.0, 3.0)
    plan.max_prompt = rng.choice([20, 40, 80])
    plan.max_output = rng.choice([30, 60, 120])
    plan.gap_us = (1_500, 9_000)
    plan.abort_share = rng.choice([0.0, 0.03, 0.1])


def _mixed(plan: CasePlan) -> None:
    """Combines traits at random."""
    rng = plan.rng
    plan.engine["block_size"] = rng.choice([1, 2, 4, 8, 16, 16, 32])
    traits = [_shared, _sessions, _tight, _evict, _bursts, _repeat_full, _long_prefill, _no_chunk, _priority, _no_cache]
    traits += [_aborts, _gates, _length_cap, _hybrid, _hybrid, _extremes]
    for trait in rng.sample(traits, rng.randint(2, 5)):
        trait(plan)
    if rng.random() < 0.3:
        plan.abort_share = max(plan.abort_share, 0.2)


KINDS: dict[str, tuple[Trait, ...]] = {
    "basic": (),
    "shared_prefix": (_shared,),
    "sessions": (_sessions,),
    "tight": (_tight,),
    "evict": (_evict,),
    "bursts": (_bursts,),
    "repeat_full": (_repeat_full,),
    "long_prefill": (_long_prefill,),
    "no_chunk": (_no_chunk,),
    "priority": (_priority,),
    "no_cache": (_no_cache,),
    "aborts": (_aborts,),
    "gates": (_gates,),
    "length_cap": (_length_cap,),
    "hybrid": (_hybrid, _many_prefixes),
    "hybrid_tight": (_tight, _hybrid),
    "extremes": (_extremes,),
    "mixed": (_mixed,),
    "stress": (_stress,),
    "stress_mixed": (_stress, _mixed),
}
"""What a case can be about. The first sixteen are the kinds the scheduler was first compared on."""


def _settle_engine(plan: CasePlan) -> None:
    """Brings the flags into what vLLM accepts, and sizes the pool: it must hold one request of max_model_len."""
    engine = plan.engine
    engine["max_num_batched_tokens"] = max(engine["max_num_batched_tokens"], engine["max_num_seqs"])
    if not engine.get("enable_chunked_prefill", True):
        engine["max_num_batched_tokens"] = max(engine["max_num_batched_tokens"], engine["max_model_len"])
    if "max_num_active_seqs" in engine:
        engine["max_num_active_seqs"] = min(engine["max_num_active_seqs"], engine["max_num_seqs"])
    if "long_prefill_token_threshold" in engine:
        engine["long_prefill_token_threshold"] = min(engine["long_prefill_token_threshold"], engine["max_model_len"])
    engine["num_gpu_blocks"] = 1 + int(_blocks_of_longest_request(engine) * plan.rng.uniform(*plan.pool))


def _most_requests(plan: CasePlan) -> int:
    """Returns how many requests keep a run within some 20,000 steps: few where flags let only one token through."""
    engine = plan.engine
    alone = engine.get("watermark", 0) > 0.5 or engine.get("max_num_active_seqs") == 1
    num_seqs = 1 if alone else engine["max_num_seqs"]
    chunk = min(engine["max_num_batched_tokens"], engine.get("long_prefill_token_threshold") or sys.maxsize)
    steps_of_a_request = plan.max_prompt / chunk / min(num_seqs, 4) + plan.max_output / num_seqs
    return max(10, int(20_000 / steps_of_a_request))


def _blocks_of_longest_request(engine: Json) -> int:
    """Returns the blocks vLLM wants for a request of max_model_len, over all KV cache groups."""
    block_size, max_model_len = engine["block_size"], engine["max_model_len"]
    num_batches = engine.get("pipeline_parallel_size", 1) + engine["async_scheduling"]
    in_flight = engine["max_num_batched_tokens"] * num_batches
    layers: list[tuple[KVCacheSpec, int]] = [
        (SlidingWindowSpec(layer[2]) if layer[0] == "sliding" else FullAttentionSpec(), layer[1])
        for layer in engine.get("kv_layers", [["full", 1]])
    ]
    return sum(
        group.max_admission_blocks_per_request(in_flight, max_model_len, block_size)
        if isinstance(group, SlidingWindowSpec)
        else -(-max_model_len // block_size)
        for group in get_kv_cache_groups(layers)
    )


def main(arguments: list[str] | None = None) -> int:
    """Writes random cases as JSON files."""
    parser = argparse.ArgumentParser(description="Writes random scheduler cases, one JSON file each.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=tuple(KINDS))
    parser.add_argument("--num-requests", type=int)
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    for case in random_cases(args.seed, args.count, kind=args.kind, num_requests=args.num_requests):
        (args.out / f"{case['name']}.json").write_text(json.dumps(case) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
