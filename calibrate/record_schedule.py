"""Records what the real vLLM scheduler decides, step by step, in virtual time.

The real `EngineCore` runs, over a device that computes nothing and lets a virtual clock run for as long as the case
says a step takes (`virtual_vllm.py`). So neither a GPU nor weights are needed, and vLLM's CPU build will do.

    python -m calibrate.record_schedule CASE.json... --out DIR [--gzip]

Cases are what `schedule_cases.py` makes, traces what `schedule_trace.py` reads. Runs in vLLM's environment: the
standard library and vllm, imported when the first case is recorded (about 12 s), and nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrate.virtual_vllm import VirtualStep, build_engine

Json = dict[str, Any]

_TOKENS_OF_A_STREAM = 1 << 20
_FIRST_OUTPUT_TOKEN = 1 << 50
_MAX_IDLE_CALLS = 1_000
_MAX_STEPS = 200_000  # requests that preempt each other for ever would go on for ever


def record(case: Json) -> list[Json]:
    """Runs a case on the real engine.

    Args:
        case: engine flags, the price of a step, and requests.

    Returns:
        The lines of the trace: the case, one object a step, the requests' times.

    Raises:
        ValueError: the case names a flag that this recorder does not know, or vLLM refuses its flags.
        RuntimeError: the engine makes no progress: a request that can never be scheduled, or too many steps.
    """
    run = _Run(case)
    engine = run.engine = build_engine(case["engine"], run)
    try:
        _drive(engine, run)
    finally:
        engine.shutdown()
    return [_header(case, engine), *run.steps, {"requests": run.stats}]


@dataclass
class _Run:
    """The clients of a case, the virtual clock and device, and everything that was seen."""

    case: Json
    engine: Any = None
    now_us: int = 0
    steps: list[Json] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    next_step: VirtualStep | None = None

    def __post_init__(self) -> None:
        requests = self.case["requests"]
        self.stage_free_us = [0] * self.case["engine"].get("pipeline_parallel_size", 1)
        self.sampled_us: dict[str, int] = {}  # by request id: the end of the latest step that samples a token of it
        self.specs: dict[str, Json] = {request["id"]: request for request in requests}
        # vLLM breaks the last ties by the request id as text: zero-padded, that is the order of the case.
        self.id_of = {name: f"{i:06d}" for i, name in enumerate(self.specs)}
        self.name_of = {request_id: name for name, request_id in self.id_of.items()}
        self.stats: dict[str, Json] = {name: {"token_us": [], "num_preemptions": 0} for name in self.specs}
        self.outputs: dict[str, list[int]] = {name: [] for name in self.specs}
        self.arrivals = [(r["arrival_us"], i, r["id"]) for i, r in enumerate(requests) if "arrival_us" in r]
        heapq.heapify(self.arrivals)
        self.num_arrivals_known = len(requests)
        self.aborts = sorted(((r["abort_us"], r["id"]) for r in requests if "abort_us" in r), reverse=True)

    def arrivals_due(self) -> list[tuple[int, str]]:
        """Takes the requests that have arrived by now, in order."""
        due = []
        while self.arrivals and self.arrivals[0][0] <= self.now_us:
            arrival_us, _, name = heapq.heappop(self.arrivals)
            due.append((arrival_us, name))
        return due

    def aborts_due(self, unfinished: dict[str, Any]) -> list[str]:
        """Takes the clients that have given up by now; returns the ids of their requests in the engine."""
        due = []
        while self.aborts and self.aborts[-1][0] <= self.now_us:
            name = self.aborts.pop()[1]
            if self.id_of[name] in unfinished:
                due.append(self.id_of[name])
                self.stats[name]["abort_us"] = self.now_us
        return due

    def on_preempt(self, request_id: str) -> None:
        """Notes a preemption, for the step that is being scheduled."""
        name = self.name_of[request_id]
        self.preempted.append(name)
        self.stats[name]["num_preemptions"] += 1

    def on_result(self, step: VirtualStep) -> None:
        """Lets the clock run to the end of a step. Clients that gave up meanwhile are told to the engine first."""
        self.now_us = max(self.now_us, step.end_us)
        if due := self.aborts_due(self.engine.scheduler.requests):
            self.engine.aborts_queue.put_nowait(due)

    def on_schedule(self, scheduler: Any, output: Any) -> None:
        """Prices a step that was just scheduled, and writes it down unless it is empty."""
        scheduled: dict[str, int] = output.num_scheduled_tokens
        requests = [scheduler.requests[request_id] for request_id in scheduled]
        sampled = [[] if r.is_prefill_chunk else [self._output_token(r)] for r in requests]
        start_us = end_us = self.now_us
        if scheduled:
            computed_before = sum(r.num_computed_tokens - scheduled[r.request_id] for r in requests)
            read_us = max(self.sampled_us.get(request_id, 0) for request_id in scheduled)
            start_us = end_us = max(start_us, self.stage_free_us[0], read_us)
            price = self._price(scheduled, computed_before)
            for stage, free_us in enumerate(self.stage_free_us):
                end_us = self.stage_free_us[stage] = max(end_us, free_us) + price
            self.sampled_us |= {r.request_id: end_us for r in requests if not r.is_prefill_chunk}
            self.steps.append(self._step(scheduler, output, start_us, end_us))
            self.preempted = []
        self.next_step = VirtualStep(list(scheduled), sampled, end_us)

    def on_token(self, request_id: str, tokens: list[int], is_last: bool) -> None:
        """Takes a request's new token to its client, who may have a follow-up to send."""
        name = self.name_of[request_id]
        stats = self.stats[name]
        self.outputs[name] += tokens
        stats["token_us"] += [self.now_us] * len(tokens)
        if not is_last:
            return
        stats["finish_us"] = self.now_us
        next(step for step in reversed(self.steps) if step["end_us"] == self.now_us)["finished"].append(name)
        for follower in self.case["requests"]:
            if "after" in follower and follower["after"][0] == name:
                arrival_us = self.now_us + follower["after"][1]
                heapq.heappush(self.arrivals, (arrival_us, self.num_arrivals_known, follower["id"]))
                self.num_arrivals_known += 1

    def prompt_tokens(self, name: str) -> list[int]:
        """Returns a request's prompt: slices of token streams, and what other requests were answered."""
        tokens: list[int] = []
        for stream, value in self.specs[name]["prompt"]:
            if stream == "out":
                tokens += self.outputs[value]
            else:
                first = int(stream) * _TOKENS_OF_A_STREAM
                tokens += range(first, first + value)
        return tokens

    def _output_token(self, request: Any) -> int:
        position: int = request.num_computed_tokens
        return _FIRST_OUTPUT_TOKEN + int(request.request_id) * _TOKENS_OF_A_STREAM + position

    def _price(self, scheduled: dict[str, int], context: int) -> int:
        cost: dict[str, int] = {"per_token": 0, "per_seq": 0, "per_1k_context": 0, **self.case["cost_us"]}
        num_tokens = sum(scheduled.values())
        per_context = cost["per_1k_context"] * context // 1000
        return cost["base"] + cost["per_token"] * num_tokens + cost["per_seq"] * len(scheduled) + per_context

    def _step(self, scheduler: Any, output: Any, start_us: int, end_us: int) -> Json:
        hits: dict[str, int] = {}
        blocks: dict[str, list[Any]] = {}
        for new in output.scheduled_new_reqs:
            hits[self.name_of[new.req_id]] = new.num_computed_tokens
            blocks[self.name_of[new.req_id]] = _by_group(new.block_ids)
        cached = output.scheduled_cached_reqs
        for request_id, computed, new_blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            if new_blocks is not None and any(new_blocks):
                blocks[self.name_of[request_id]] = _by_group(new_blocks)
            if request_id in cached.resumed_req_ids:
                hits[self.name_of[request_id]] = computed
        num_running, num_waiting = scheduler.get_request_counts()
        return {
            "t_us": self.now_us,
            "start_us": start_us,
            "end_us": end_us,
            "scheduled": [[self.name_of[i], n] for i, n in output.num_scheduled_tokens.items()],
            "hits": hits,
            "preempted": self.preempted,
            "blocks": blocks,
            "running": num_running,
            "waiting": num_waiting,
            "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            "finished": [],
        }


def _by_group(block_ids: Any) -> list[Any]:
    groups = [list(group) for group in block_ids]
    return groups[0] if len(groups) == 1 else groups


def _drive(engine: Any, run: _Run) -> None:
    """Alternates between the clients and the engine until neither has anything left to do."""
    scheduler = engine.scheduler
    idle_calls = 0
    while True:
        for arrival_us, name in run.arrivals_due():
            _send(engine, run, name, arrival_us)
        if due := run.aborts_due(scheduler.requests):
            engine.abort_requests(due)
        if not (scheduler.has_requests() or engine.batch_queue):
            if not run.arrivals:
                break
            run.now_us = run.arrivals[0][0]
            continue
        num_steps = len(run.steps)
        outputs, _ = engine.step_fn()
        for client_outputs in (outputs or {}).values():
            for output in client_outputs.outputs:
                if str(output.finish_reason) != "abort":
                    run.on_token(output.request_id, output.new_token_ids, output.finish_reason is not None)
        idle_calls = 0 if outputs or len(run.steps) > num_steps else idle_calls + 1
        num_running, num_waiting = scheduler.get_request_counts()
        if idle_calls > _MAX_IDLE_CALLS or len(run.steps) > _MAX_STEPS:
            raise RuntimeError(f"no end after {len(run.steps)} steps: {num_running} running, {num_waiting} waiting")
    for stats in run.stats.values():
        stats["first_token_us"] = stats["token_us"][0] if stats["token_us"] else None


def _send(engine: Any, run: _Run, name: str, arrival_us: int) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    tokens = run.prompt_tokens(name)
    run.stats[name] |= {"arrival_us": arrival_us, "num_prompt_tokens": len(tokens)}
    request = EngineCoreRequest(
        request_id=run.id_of[name],
        prompt_token_ids=tokens,
        mm_features=None,
        sampling_params=SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=run.specs[name]["max_tokens"]),
        pooling_params=None,
        arrival_time=float(arrival_us),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        priority=run.specs[name].get("priority", 0),
    )
    engine.add_request(*engine.preprocess_add_request(request))


def _header(case: Json, engine: Any) -> Json:
    import vllm

    config = engine.vllm_config
    resolved = {
        "num_gpu_blocks": config.cache_config.num_gpu_blocks,
        "batch_queue_size": engine.batch_queue_size,
        "scheduler_reserve_full_isl": config.scheduler_config.scheduler_reserve_full_isl,
        "scheduler": type(engine.scheduler).__mro__[1].__name__,
    }
    return {**case, "vllm_version": vllm.__version__, "resolved": resolved}


def write_trace(trace: list[Json], path: Path) -> None:
    """Writes a trace, compressed if the path ends in .gz; the same trace gives the same bytes."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in trace)
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def main(arguments: list[str] | None = None) -> int:
    """Records cases, one trace each; one that vLLM refuses is told and left out."""
    parser = argparse.ArgumentParser(description="Records schedules of the real vLLM engine in virtual time.")
    parser.add_argument("cases", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gzip", action="store_true")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    num_refused = 0
    for path in args.cases:
        case = json.loads(path.read_text(encoding="utf-8"))
        try:
            trace = record(case)
        except (ValueError, RuntimeError) as error:
            num_refused += 1
            sys.stderr.write(f"{path}: not recorded: {str(error).splitlines()[0]}\n")
            continue
        write_trace(trace, args.out / f"{case['name']}.jsonl{'.gz' if args.gzip else ''}")
        sys.stdout.write(f"{case['name']}: {len(trace) - 2} steps\n")
        sys.stdout.flush()
    return 1 if num_refused else 0


if __name__ == "__main__":
    sys.exit(main())
