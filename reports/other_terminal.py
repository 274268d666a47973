"""What a terminal shows of Ollama and of static batches beside what it shows of any server (T11)."""

from __future__ import annotations

from typing import Any

from reports.numbers import show

Document = dict[str, Any]


def other_limits(document: Document) -> list[str]:
    """Returns the server's own limits at the load that is the answer, and at the one that breaks."""
    chosen = [point for point in _decisive(document) if "ollama" in point or "static" in point]
    lines: list[str] = []
    for point in chosen:
        at = "" if point["load"] is None else f" at load {show(point['load'])}"
        if "ollama" in point:
            lines += [f"Ollama's own limits{at} (means over the seeds)", *_ollama(point["ollama"])]
        else:
            lines += [f"Static batches{at} (means over the seeds)", *_static(point["static"])]
    return lines


def other_settings(flags: Document) -> list[str]:
    """Returns the settings of a server that has none of vLLM's flags."""
    return [f"{name} {flag['value']}{' (default)' if flag['default'] else ''}" for name, flag in flags.items()]


def gpus_of_ollama(server: Document) -> str:
    """Returns the GPUs of a server that puts its layers one after the other on them: it has no parallel size."""
    count = server["tensor_parallel_size"] * server["pipeline_parallel_size"] * server["data_parallel_size"]
    return f"{count} x {server['gpu']}" if count > 1 else str(server["gpu"])


def memory_title(document: Document) -> str:
    """Returns the heading of the memory."""
    if document["server"]["kind"] == "ollama":
        return "Memory of all GPUs, with every model loaded (GiB; ~ marks an estimate; KV cache: the context product)"
    return "Memory of one GPU (GiB; ~ marks an estimate)"


def _decisive(document: Document) -> list[Document]:
    if document["search"] is None:
        return list(document["points"][:1])
    loads = (document["supported_users"]["value"], document["search"]["next_load"])
    return [point for point in document["points"] if point["load"] in loads]


def _ollama(use: Document) -> list[str]:
    lines = [_model(model) for model in use["models"]]
    aborted = f", {show(use['aborted_loads'])} aborted" if use["aborted_loads"] else ""
    lines.append(
        f"  {_count(use['loads'], 'load')} ({show(use['load_s'])} s of loading{aborted}), "
        f"{_count(use['evictions'], 'eviction')}, {show(use['expired'])} unloaded by keep-alive"
    )
    for name, wait in (("load", use["wait_for_load"]), ("slot", use["wait_for_slot"])):
        lines.append(
            f"  waiting for a {name}: mean {_time(wait['mean_ms'])}, p95 {_time(wait['p95_ms'])}, "
            f"{show(wait['total_s'])} s in all, {_percent(wait['share'])} of the answers"
        )
    when = f", from {show(use['first_503_s'])} s to {show(use['last_503_s'])} s" if use["rejected_503"] else ""
    lines.append(f"  503 (server busy): {show(use['rejected_503'])}{when}")
    lines.append(
        f"  eval_count / eval_duration {show(use['eval_tokens_per_s'])} tokens/s, prompt_eval_count / "
        f"prompt_eval_duration {show(use['prompt_tokens_per_s'])} tokens/s (medians)"
    )
    if use["truncated_prompts"] or use["context_shifts"]:
        lines.append(
            f"  {show(use['truncated_prompts'])} prompts cut to the context, {show(use['context_shifts'])} context "
            "shifts"
        )
    return lines


def _model(model: Document) -> str:
    context = f"{_count(model['num_parallel'], 'slot')} x {model['num_ctx']:,} tokens, {show(model['context_gib'])} GiB"
    layers = f"{model['gpu_layers']} of {model['layers']} layers on the GPU"
    return f"  {model['name']}: {context} of context; {layers}, num_batch {model['num_batch']}"


def _static(use: Document) -> list[str]:
    return [
        f"  {show(use['num_batches'])} batches of {show(use['mean_size'])} requests; seats computed for nobody "
        f"{_percent(use['idle_seat_share'])}, padding {_percent(use['padding_share'])} of the prompt tokens",
        f"  KV memory reserved ({use['reservation']}) and empty: {_percent(use['kv_waste_share'])}",
    ]


def _time(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def _count(number: float, thing: str) -> str:
    return f"{show(number)} {thing}{'' if number == 1 else 's'}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"
