"""The limits of Ollama and of static batches, where one of them is behind a broken objective."""

from __future__ import annotations

from collections.abc import Mapping

from sim.capacity.finding import Diagnosis
from sim.capacity.point import Point, mean
from sim.results.other_servers import OllamaUse, StaticUse


def diagnose_ollama(point: Point, metric: str, parts_ms: Mapping[str, float]) -> Diagnosis | None:
    """Names the limit of an Ollama server; None of other kinds, and where it is the hardware that is slow.

    Args:
        point: the load where something breaks.
        metric: what broke.
        parts_ms: where the time goes at the percentile that broke.
    """
    uses = [run.ollama for run in point.runs if run.ollama is not None]
    if not uses:
        return None
    errors = _errors(point)
    if metric == "errors" and max(errors, key=errors.__getitem__, default="") == "rejected":
        return _rejected(uses, errors["rejected"])
    if metric == "errors" and errors.get("timed_out") and any(use.num_aborted_loads for use in uses):
        return _aborted(uses)
    longest = max(parts_ms, key=parts_ms.__getitem__, default="")
    if metric in ("itl", "tpot") or longest not in ("queue", "prefill"):
        return None
    return _slow_prompts(point, uses[0], parts_ms["prefill"]) if longest == "prefill" else _waiting(uses)


def diagnose_static(point: Point, metric: str, parts_ms: Mapping[str, float]) -> Diagnosis | None:
    """Names static batching where requests wait for a batch to end; None otherwise."""
    uses = [run.static for run in point.runs if run.static is not None]
    if not uses or metric in ("itl", "tpot", "errors"):
        return None
    longest = max(parts_ms, key=parts_ms.__getitem__, default="")
    if longest not in ("queue", "prefill"):
        return None
    waits = (
        f"requests wait {_time(parts_ms['queue'])} until the batch before theirs is done"
        if longest == "queue"
        else f"reading the prompts of a batch takes {_time(parts_ms['prefill'])}, and no prefix is reused"
    )
    return Diagnosis(
        "static_batches",
        f"{waits}: {_static(uses)}",
        "continuous batching (kind: vllm); else answers of equal length together, or a larger batch_size",
    )


def _rejected(uses: list[OllamaUse], count: int) -> Diagnosis:
    times = [time for use in uses if use.rejected_s is not None for time in use.rejected_s]
    when = f" between {min(times):.3g} s and {max(times):.3g} s" if times else ""
    return Diagnosis(
        "model_loads",
        f"{count} requests were answered 503{when}: they met a model that was not loaded, and a full queue; "
        f"{_loads(uses)}",
        "load the model before the burst and keep it (keep_alive -1), or raise max_queue",
    )


def _aborted(uses: list[OllamaUse]) -> Diagnosis:
    aborted = sum(use.num_aborted_loads for use in uses)
    return Diagnosis(
        "model_loads",
        f"{aborted} loads were aborted because their clients gave up first; {_loads(uses)}",
        "more patient clients, a model that stays loaded (keep_alive -1), or a faster disk",
    )


def _slow_prompts(point: Point, use: OllamaUse, prefill_ms: float) -> Diagnosis:
    return Diagnosis(
        "token_budget",
        f"reading a prompt takes {_time(prefill_ms)}, in batches of num_batch {use.models[0].num_batch}; "
        f"{_percent(_hits(point))} of the prompt tokens were found in a slot: each of {use.num_parallel} keeps the "
        "conversation that had it last",
        "as many slots as conversations (num_parallel), shorter prompts, or a faster GPU",
    )


def _waiting(uses: list[OllamaUse]) -> Diagnosis:
    """Tells the queue before a loaded model from the queue before a slot."""
    use, model = uses[0], uses[0].models[0]
    for_load = mean(each.wait_for_load.mean for each in uses) or 0.0
    for_slot = mean(each.wait_for_slot.mean for each in uses) or 0.0
    if for_load > for_slot:
        return Diagnosis(
            "model_loads",
            f"requests wait {_time(for_load)} on average until their model is loaded, {_time(for_slot)} for a slot; "
            f"{_loads(uses)}",
            "fewer models, or GPU memory for all of them; keep_alive -1; one num_ctx for all clients",
        )
    slots = "the only slot" if use.num_parallel == 1 else f"one of {use.num_parallel} slots"
    return Diagnosis(
        "num_parallel",
        f"requests wait {_time(for_slot)} on average for {slots} (num_parallel), with a context of "
        f"{model.num_ctx:,} tokens of its own; an answer comes at "
        f"{_number(mean(each.eval_tokens_per_s for each in uses))} tokens/s once it has a slot",
        f"raise num_parallel: another slot takes {model.context_bytes / model.num_parallel / 2**30:.2g} GiB; or a "
        "server that batches continuously",
    )


def _loads(uses: list[OllamaUse]) -> str:
    loads = mean(float(use.num_loads) for use in uses) or 0.0
    evictions = mean(float(use.num_evictions) for use in uses) or 0.0
    seconds = mean(use.load_s for use in uses) or 0.0
    return f"{loads:.3g} loads and {evictions:.3g} evictions a run, {seconds:.3g} s of loading"


def _static(uses: list[StaticUse]) -> str:
    size = _number(mean(use.mean_size for use in uses))
    idle, waste = mean(use.idle_seat_share for use in uses), mean(use.kv_waste_share for use in uses)
    wasted = f"{_percent(idle)} of its seats computed for nobody, {_percent(waste)} of its KV memory empty"
    return f"{size} requests a batch, {wasted}"


def _errors(point: Point) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in point.runs:
        for kind, count in run.total.errors.items():
            found[kind] = found.get(kind, 0) + count
    return found


def _hits(point: Point) -> float | None:
    return mean(
        run.total.num_cached_tokens / run.total.num_prompt_tokens if run.total.num_prompt_tokens else None
        for run in point.runs
    )


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"
