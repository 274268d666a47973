"""The changes: one flag of the server each, to a value that it does not have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sim.deployment import plan
from sim.memory import ResolvedFlags
from sim.scenario.model import Scenario
from sim.search import parse_space, resolved
from sim.sweep.axes import as_text

_STEP = 0.05  # of the GPU's memory
_MOST_UTILIZATION = 0.98


@dataclass(frozen=True, slots=True)
class Change:
    """One flag at another value.

    Attributes:
        key: dotted, in full (`server.max_num_seqs`).
        before: the value that the server has, default or not.
        after: the value to try.
    """

    key: str
    before: Any
    after: Any

    @property
    def text(self) -> str:
        """The change as a person reads it: `max_num_seqs 64 -> 128`."""
        return f"{self.key.removeprefix('server.')} {as_text(self.before)} -> {as_text(self.after)}"


def parse_changes(texts: list[str], scenario: Scenario) -> list[Change]:
    """Reads the texts of `--vary`; values that the server has already are left out.

    Raises:
        UserError: one cannot be read, names no flag, or gives a value that the flag cannot have.
    """
    space = parse_space(texts, scenario)
    has = resolved(scenario, tuple(axis.key for axis in space.axes))
    return [
        Change(axis.key, has[axis.key], value)
        for axis in space.axes
        for value in axis.values
        if as_text(value) != as_text(has[axis.key])
    ]


def default_changes(scenario: Scenario) -> list[Change]:
    """Returns the changes that are worth knowing for any server of vLLM: each flag a step down and a step up.

    Raises:
        UserError: the server would not start.
    """
    deployment = plan(scenario)
    found = [
        Change(f"server.{name}", getattr(deployment.flags, name), value) for name, value in _steps(deployment.flags)
    ]
    size = scenario.server.tensor_parallel_size
    if not deployment.gpu.is_cpu:
        found.append(Change("server.tensor_parallel_size", size, 2 * size))
    return found


def _steps(flags: ResolvedFlags) -> Iterator[tuple[str, Any]]:
    """Yields a flag and another value."""
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        value = getattr(flags, name)
        yield from ((name, each) for each in (value // 2, 2 * value) if each >= 1)
    share = flags.gpu_memory_utilization
    for step in (-_STEP, _STEP):
        if 0 < share + step <= _MOST_UTILIZATION:
            yield "gpu_memory_utilization", round(share + step, 4)
    yield "max_model_len", 2 * flags.max_model_len
    threshold = flags.long_prefill_token_threshold
    yield (
        "long_prefill_token_threshold",
        0 if threshold else min(flags.max_num_batched_tokens // 4, flags.max_model_len),
    )
    yield "enable_prefix_caching", not flags.enable_prefix_caching
    yield "enable_chunked_prefill", not flags.enable_chunked_prefill
    yield "kv_cache_dtype", "auto" if flags.kv_cache_dtype.startswith("fp8") else "fp8"
