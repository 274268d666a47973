"""GPUs that are not at their best: a clock held down by a power limit, one of a group that is slower than the others.

Both scale a model that was made for healthy GPUs, and a result says so: nothing of it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from sim.engine.fitted import FittedModel
from sim.engine.step_time import Batch, StepTimeModel
from sim.errors import UserError
from sim.hardware import Gpu


@runtime_checkable
class SplitsSteps(Protocol):
    """A step-time model that knows what a step's time is made of."""

    def parts(self, batch: Batch) -> dict[str, int]:
        """Returns the step's nanoseconds by part (names of `STEP_PARTS`), which add up to it within rounding."""


def gpu_at_clock(gpu: Gpu, factor: float) -> Gpu:
    """Returns a GPU whose matrix units run at this share of their clock, and whose memory is as fast as ever.

    A power limit lowers the clock of the cores, and that of the memory not: prompts, which are bound by computing, take
    1 / factor as long, and decodes, bound by reading, hardly longer. (On an H200 decodes draw 137 to 300 of 700 W, so
    that no limit ever touches them: Ma et al., "The Illusion of Power Capping in LLM Decode", arXiv:2605.11999.)
    """
    return replace(
        gpu,
        bf16_flops=gpu.bf16_flops * factor,
        fp8_flops=None if gpu.fp8_flops is None else gpu.fp8_flops * factor,
        int8_ops=None if gpu.int8_ops is None else gpu.int8_ops * factor,
    )


def fitted_at_clock(model: StepTimeModel, factor: float) -> FittedModel:
    """Returns a fitted model with its terms of computing divided by the factor, and its terms of reading as they are.

    Raises:
        UserError: a model of another kind, which does not tell the two apart.
    """
    if not isinstance(model, FittedModel):
        raise UserError(
            f"server.clock_factor: profile {model.name} does not tell computing from reading; give 1, or a profile of "
            "kind fitted, or analytical"
        )
    c = model.coefficients
    scaled = replace(
        c,
        token_ns=c.token_ns / factor,
        compute_table=tuple((count, ns / factor) for count, ns in c.compute_table),
        attention_pair_ns=c.attention_pair_ns / factor,
    )
    return FittedModel(
        scaled,
        name=model.name,
        calibrated=model.calibrated,
        async_scheduling=model.async_scheduling,
        validity=model.validity,
    )


@dataclass(frozen=True, slots=True)
class SlowSpan:
    """One GPU is `factor` times as slow from `from_ns` to before `to_ns`."""

    from_ns: int
    to_ns: int
    factor: float


class SlowGpu:
    """Steps of a group of GPUs of which one is slower: all wait for it at the next all-reduce.

    What the slow one computes and reads takes `factor` times as long; the exchange between the GPUs and the host's work
    take as long as ever. In a pipeline only its own stage is slower.

    Args:
        model: the group's steps when all are well.
        spans: when one is slow; where spans overlap, the slowest counts.
        start_ns: returns when the step that is priced begins.
        num_stages: pipeline stages.
        async_scheduling: the host's work hides behind the device's.
    """

    def __init__(
        self,
        model: StepTimeModel,
        spans: Sequence[SlowSpan],
        start_ns: Callable[[], int],
        *,
        num_stages: int = 1,
        async_scheduling: bool = True,
    ) -> None:
        self.name = model.name
        self.calibrated = model.calibrated
        self.healthy = model
        self._spans = tuple(spans)
        self._start_ns = start_ns
        self._num_stages = num_stages
        self._async = async_scheduling

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds."""
        healthy_ns = self.healthy.step_time(batch)
        now_ns = self._start_ns()
        factor = max((span.factor for span in self._spans if span.from_ns <= now_ns < span.to_ns), default=1.0)
        if factor == 1:
            return healthy_ns
        parts = self.parts(batch)
        host_ns = parts.get("host", 0)
        device_ns = sum(parts.values()) - host_ns
        own_ns = (device_ns - parts.get("collectives", 0)) / self._num_stages
        slowed_ns = round(device_ns + (factor - 1) * own_ns)
        return max(slowed_ns, healthy_ns) if self._async else slowed_ns + host_ns

    def parts(self, batch: Batch) -> dict[str, int]:
        """Returns the parts of a healthy step; of a model that does not know them, all in one."""
        if isinstance(self.healthy, SplitsSteps):
            return self.healthy.parts(batch)
        return {"gemm": self.healthy.step_time(batch)}

    def out_of_range(self) -> list[str]:
        """See `StepTimeModel`."""
        return self.healthy.out_of_range()
