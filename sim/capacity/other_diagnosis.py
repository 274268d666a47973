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
        aborted = sum(use.num_aborted_loads for use in uses)
        return Diagnosis(
            "model_loads",
            f"{aborted} loads were aborted because their clients gave up first; {_loads(uses)}",
            "more patient clients, a model that stays loaded (keep_alive -1), or a faster disk",
        )
    if metric in ("itl", "tpot") or max(parts_ms, key=parts_ms.__getitem__, default="") != "queue":
        return None
    for_load = mean(use.wait_for_load.mean for use in uses) or 0.0
    for_slot = mean(use.wait_for_slot.mean for use in uses) or 0.0
    if for_load > for_slot:
        return Diagnosis(
            "model_loads",
            f"requests wait {for_load:.3g} ms on average until their model is loaded, {for_slot:.3g} ms for a slot; "
            f"{_loads(uses)}",
            "fewer models, or GPU memory for all of them; keep_alive -1; one num_ctx for all clients",
        )
    use = uses[0]
    return Diagnosis(
        "num_parallel",
        f"requests wait {for_slot:.3g} ms on average for one of {use.num_parallel} slots (num_parallel), each with a "
        f"context of {use.models[0].num_ctx:,} tokens of its own; an answer comes at "
        f"{_number(mean(each.eval_tokens_per_s for each in uses))} tokens/s once it has a slot",
        f"raise num_parallel: another slot takes {use.models[0].context_bytes / use.num_parallel / 2**30:.2g} GiB; or "
        "a server that batches continuously",
    )


def diagnose_static(point: Point, metric: str, parts_ms: Mapping[str, float]) -> Diagnosis | None:
    """Names static batching where requests wait for a batch to end; None otherwise."""
    uses = [run.static for run in point.runs if run.static is not None]
    if not uses or metric in ("itl", "tpot", "errors"):
        return None
    if max(parts_ms, key=parts_ms.__getitem__, default="") != "queue":
        return None
    return Diagnosis(
        "static_batches",
        f"requests wait {parts_ms['queue']:.3g} ms until the batch before theirs is done: {_static(uses)}",
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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"
