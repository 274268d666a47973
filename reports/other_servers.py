"""The parts of a result's document that are those of Ollama and of static batches (T11)."""

from __future__ import annotations

from typing import Any

from reports.numbers import mean_of
from sim.capacity import Point
from sim.ollama_deployment import OllamaDeployment
from sim.results.other_servers import OllamaUse, StaticUse, Waits
from sim.results.rounding import rounded
from sim.scenario.model import Server

Document = dict[str, Any]
GIB = 2**30


def ollama_server(server: Server, deployment: OllamaDeployment) -> Document:
    """Returns the server as a report states it; its flags are Ollama's environment variables."""
    return {
        "kind": "ollama",
        "version": server.ollama.version,
        "model": ", ".join(model.name for model in deployment.models),
        "gpu": server.gpu,
        "tensor_parallel_size": server.tensor_parallel_size,
        "pipeline_parallel_size": server.pipeline_parallel_size,
        "data_parallel_size": server.data_parallel_size,
        "flags": {name: {"value": value, "default": default} for name, (value, default) in deployment.settings.items()},
    }


def ollama_memory(deployment: OllamaDeployment) -> Document:
    """Returns the memory of all GPUs together with every model loaded, in the shape of vLLM's budget.

    Weights are the files, the KV cache is the context product, non-torch the buffers of each runner. Where models take
    turns, the sum may exceed what there is.
    """
    placements = [model.placement for model in deployment.models]
    first = placements[0]
    context, weights = sum(each.context_bytes for each in placements), sum(each.file_bytes for each in placements)
    total = deployment.host.total_bytes or deployment.host.ram_bytes
    everything = sum(each.gpu_bytes + each.ram_bytes for each in placements)
    tokens = first.num_parallel * first.num_ctx
    slots = "1 slot" if first.num_parallel == 1 else f"{first.num_parallel} slots"
    product = f"{slots} x {first.num_ctx:,} tokens = {tokens:,} tokens of context"
    layers = f"{first.num_gpu_layers} of {first.num_layers} layers on the GPU"
    return {
        "total_gib": rounded(total / GIB),
        "weights_gib": rounded(weights / GIB),
        "activation_gib": 0,
        "non_torch_gib": rounded(max(0.0, everything - context - weights) / GIB),
        "graphs_gib": 0,
        "kv_cache_gib": rounded(context / GIB),
        "utilization": 1,
        "kv_bytes_per_token": round(first.bytes_per_token),
        "block_size": 1,
        "num_gpu_blocks": tokens,
        "kv_tokens": tokens,
        "max_model_len": first.num_ctx,
        "longest_context": first.num_ctx,
        "max_concurrency": first.num_parallel,
        "max_concurrency_line": f"{product} ({first.context_bytes / GIB:.2f} GiB); {layers}",
        "estimated": ["weights_gib", "non_torch_gib", "kv_cache_gib"],
    }


def limits(point: Point) -> Document:
    """Returns `ollama` or `static` for a point: the server's own limits, means over the seeds; nothing for vLLM."""
    ollama = [run.ollama for run in point.runs if run.ollama is not None]
    static = [run.static for run in point.runs if run.static is not None]
    if ollama:
        return {"ollama": _ollama(ollama)}
    return {"static": _static(static)} if static else {}


def _ollama(uses: list[OllamaUse]) -> Document:
    first = uses[0]
    times = [use.rejected_s for use in uses if use.rejected_s is not None]
    return {
        "models": [
            {
                "name": model.name,
                "num_parallel": model.num_parallel,
                "num_ctx": model.num_ctx,
                "num_batch": model.num_batch,
                "context_gib": rounded(model.context_bytes / GIB),
                "gpu_gib": rounded(model.gpu_bytes / GIB),
                "ram_gib": rounded(model.ram_bytes / GIB),
                "gpu_layers": model.num_gpu_layers,
                "layers": model.num_layers,
            }
            for model in first.models
        ],
        "effective_parallel": first.num_parallel,
        "context_gib": rounded(first.context_gib),
        "loads": mean_of(uses, "num_loads"),
        "aborted_loads": mean_of(uses, "num_aborted_loads"),
        "evictions": mean_of(uses, "num_evictions"),
        "expired": mean_of(uses, "num_expired"),
        "load_s": mean_of(uses, "load_s"),
        "wait_for_load": _waits([use.wait_for_load for use in uses]),
        "wait_for_slot": _waits([use.wait_for_slot for use in uses]),
        "rejected_503": mean_of(uses, "num_rejected"),
        "first_503_s": rounded(min((time[0] for time in times), default=None)),
        "last_503_s": rounded(max((time[1] for time in times), default=None)),
        "eval_tokens_per_s": mean_of(uses, "eval_tokens_per_s"),
        "prompt_tokens_per_s": mean_of(uses, "prompt_tokens_per_s"),
        "context_shifts": mean_of(uses, "num_shifts"),
        "truncated_prompts": mean_of(uses, "num_truncated"),
    }


def _waits(waits: list[Waits]) -> Document:
    return {
        "mean_ms": mean_of(waits, "mean"),
        "p95_ms": mean_of(waits, "p95"),
        "total_s": mean_of(waits, "total_s"),
        "share": mean_of(waits, "share"),
    }


def _static(uses: list[StaticUse]) -> Document:
    names = ("num_batches", "mean_size", "idle_seat_share", "padding_share", "kv_waste_share")
    return {"reservation": uses[0].reservation, **{name: mean_of(uses, name) for name in names}}
