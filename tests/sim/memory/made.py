"""Servers for the tests: one line each."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from sim.hardware import find_gpu
from sim.memory import EngineFlags, MemoryBudget, MemoryOverrides, ServerSpec, memory_budget
from sim.models import ModelSpec, find_model

_FLAGS = {field.name for field in fields(EngineFlags)}
_MEASURED = {field.name for field in fields(MemoryOverrides)}


def server(version: str = "0.32", tp: int = 1, pp: int = 1, **values: Any) -> ServerSpec:
    """Builds a server; the other arguments are flags or measured values, by name."""
    flags = {name: value for name, value in values.items() if name in _FLAGS}
    memory = {name: value for name, value in values.items() if name in _MEASURED}
    rest = {name: value for name, value in values.items() if name not in _FLAGS | _MEASURED}
    return ServerSpec(
        version=version,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        flags=EngineFlags(**flags),
        memory=MemoryOverrides(**memory),
        **rest,
    )


def budget(
    model: str | ModelSpec, gpu: str = "h100", version: str = "0.32", *, total_gib: float | None = None, **values: Any
) -> MemoryBudget:
    """Returns the budget of a model on a GPU; `total_gib` replaces the GPU's memory, the rest is as in `server`."""
    spec = model if isinstance(model, ModelSpec) else find_model(model)
    device = find_gpu(gpu)
    if total_gib is not None:
        device = replace(device, memory_gib=total_gib)
    return memory_budget(spec, device, server(version, **values))
