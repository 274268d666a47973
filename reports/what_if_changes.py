"""Which changes are worth simulating: one parameter at a time, those first that touch what binds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.deployment import AnyDeployment, Deployment
from sim.ollama_deployment import OllamaDeployment
from sim.scenario.model import Scenario

MOST_CHANGES = 5

_FLAG = "server.flags."
_MORE_MEMORY = 0.95


@dataclass(frozen=True, slots=True)
class WhatIfChange:
    """One change of a scenario.

    Attributes:
        key: names its text (`what_if.<key>`).
        changes: dotted key -> value, as `sim.scenario.load.override` takes them.
        before: the value it replaces.
        after: the new one.
    """

    key: str
    changes: dict[str, Any]
    before: str
    after: str


def changes_for(scenario: Scenario, deployment: AnyDeployment, resource: str | None) -> list[WhatIfChange]:
    """Returns the changes to simulate, at most `MOST_CHANGES`: for what binds, and what is switched off."""
    if resource is None:
        return []
    if isinstance(deployment, OllamaDeployment):
        return _ollama_changes(scenario, deployment)[:MOST_CHANGES]
    if scenario.server.kind == "static":
        return _static_changes(scenario)
    wanted = ("chunked_prefill", "prefix_caching", *_FOR_RESOURCE.get(resource, ()))
    found = (_CHANGES[key](scenario, deployment) for key in wanted)
    return [change for change in found if change is not None][:MOST_CHANGES]


_FOR_RESOURCE = {
    "token_budget": ("budget_double", "budget_half", "kv_fp8", "more_memory", "tp_double", "one_replica_more"),
    "max_num_seqs": ("seats_double", "budget_double", "weights_fp8", "more_memory", "tp_double", "one_replica_more"),
    "kv_blocks": ("kv_fp8", "more_memory", "seats_half", "weights_fp8", "tp_double", "one_replica_more"),
    "decode_speed": ("weights_fp8", "seats_half", "budget_half", "kv_fp8", "tp_double", "one_replica_more"),
    "admission_limit": ("queue_double", "seats_double", "tp_double", "one_replica_more"),
    "max_model_len": ("model_len_double", "kv_fp8", "tp_double"),
}


def _ollama_changes(scenario: Scenario, deployment: OllamaDeployment) -> list[WhatIfChange]:
    """Returns more slots, models that stay, a smaller context, a longer queue, and vLLM in Ollama's place."""
    ollama, slots = scenario.server.ollama, deployment.models[0].placement.num_parallel
    found = [
        WhatIfChange("slots_double", {"server.ollama.num_parallel": factor * slots}, str(slots), str(factor * slots))
        for factor in (2, 4)
    ]
    if any(model.keep_alive_ns is not None for model in deployment.models):
        found.append(WhatIfChange("keep_for_ever", {"server.ollama.keep_alive": "-1"}, "", ""))
    if ollama.kv_cache_type == "f16":
        found.append(WhatIfChange("ollama_kv_q8", {"server.ollama.kv_cache_type": "q8_0"}, "", ""))
    return [*found, WhatIfChange("use_vllm", {"server.kind": "vllm"}, "Ollama", "vLLM")]


def _static_changes(scenario: Scenario) -> list[WhatIfChange]:
    size = scenario.server.static.batch_size
    return [
        WhatIfChange("batch_double", {"server.static.batch_size": 2 * size}, str(size), str(2 * size)),
        WhatIfChange("use_vllm", {"server.kind": "vllm"}, "static", "vLLM"),
    ]


_Build = Callable[[Scenario, Deployment], WhatIfChange | None]


def _scaled(key: str, flag: str, factor: float) -> _Build:
    """Returns a change that multiplies a whole-number flag."""

    def build(_: Scenario, deployment: Deployment) -> WhatIfChange | None:
        before = getattr(deployment.flags, flag)
        if before is None or before * factor < 1:
            return None
        after = int(before * factor)
        return WhatIfChange(key, {_FLAG + flag: after}, str(before), str(after))

    return build


def _set(key: str, flag: str, after: Any, wanted: Callable[[Deployment], bool]) -> _Build:
    """Returns a change that sets a flag where that makes a difference."""

    def build(_: Scenario, deployment: Deployment) -> WhatIfChange | None:
        if not wanted(deployment):
            return None
        return WhatIfChange(key, {_FLAG + flag: after}, str(getattr(deployment.flags, flag)), str(after))

    return build


def _tp_double(scenario: Scenario, deployment: Deployment) -> WhatIfChange | None:
    before = scenario.server.tensor_parallel_size
    if deployment.gpu.is_cpu or _is_measured(deployment):
        return None
    return WhatIfChange("tp_double", {"server.tensor_parallel_size": 2 * before}, str(before), str(2 * before))


def _one_replica_more(scenario: Scenario, deployment: Deployment) -> WhatIfChange | None:
    """Returns more GPUs as another server: where they cannot share the layers of this one."""
    if scenario.server.autoscaling is not None or _tp_double(scenario, deployment) is not None:
        return None
    before = scenario.server.replicas
    return WhatIfChange("one_replica_more", {"server.replicas": before + 1}, str(before), str(before + 1))


def _is_measured(deployment: Deployment) -> bool:
    """Whether parts of the memory were measured: they hold for this model on these GPUs alone."""
    return any(value is not None for value in deployment.server.memory.model_dump().values())


def _has_pool_flag(deployment: Deployment) -> bool:
    """Whether the size of the KV pool is set outright, so that its share of the memory has no say."""
    flags, measured = deployment.server.flags, deployment.server.memory
    given = (flags.num_gpu_blocks_override, flags.kv_cache_memory_bytes, measured.kv_cache_gib)
    return any(value is not None for value in given)


_CHANGES: dict[str, _Build] = {
    "chunked_prefill": _set("chunked_prefill", "enable_chunked_prefill", True,
                            lambda it: not it.flags.enable_chunked_prefill),
    "prefix_caching": _set("prefix_caching", "enable_prefix_caching", True,
                           lambda it: not it.flags.enable_prefix_caching),
    "seats_double": _scaled("seats_double", "max_num_seqs", 2),
    "seats_half": _scaled("seats_half", "max_num_seqs", 0.5),
    "budget_double": _scaled("budget_double", "max_num_batched_tokens", 2),
    "budget_half": _scaled("budget_half", "max_num_batched_tokens", 0.5),
    "queue_double": _scaled("queue_double", "max_num_queued_reqs", 2),
    "model_len_double": _scaled("model_len_double", "max_model_len", 2),
    "kv_fp8": _set("kv_fp8", "kv_cache_dtype", "fp8",
                   lambda it: not it.flags.kv_cache_dtype.startswith("fp8")
                   and it.flags.num_gpu_blocks_override is None),
    "more_memory": _set("more_memory", "gpu_memory_utilization", _MORE_MEMORY,
                        lambda it: it.flags.gpu_memory_utilization < _MORE_MEMORY and not _has_pool_flag(it)),
    "weights_fp8": _set("weights_fp8", "quantization", "fp8",
                        lambda it: it.gpu.fp8_flops is not None and it.flags.quantization is None
                        and it.model.quantization is None and not _is_measured(it)),
    "tp_double": _tp_double,
    "one_replica_more": _one_replica_more,
}  # fmt: skip
