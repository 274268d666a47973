"""Where a step's time goes, part by part, under names that can be held against a kernel profile.

A profile of the real server comes from `nsys`, sorted into categories by vLLM's own tool
(tools/profiler/nsys_profile_tools/gputrc2graph.py and vllm_engine_model.json): `KERNELS` says which of its categories
each part is. How far a part can be told depends on the model of step times:

- the analytical roofline knows each part by itself;
- a fitted profile has terms, not kernels: what reads weights, computes tokens, exchanges and normalises is one term,
  its base, and called so;
- operator tables have matrix products and norms of a layer in one, and attention with its reads in one.
"""

from __future__ import annotations

from array import array

from sim.engine.conditions import SlowGpu
from sim.engine.fitted import FittedModel
from sim.engine.operator_table import OperatorTableModel
from sim.engine.roofline import Roofline
from sim.engine.step_time import Batch, StepTimeModel
from sim.records import StepSplit

KERNELS = {
    "base": "gemm, moe_gemm, moe, norm, silu, rope, nccl_and_custom_ar",
    "layers": "gemm, moe_gemm, moe, norm, silu, rope",
    "gemm": "gemm",
    "experts": "moe_gemm, moe",
    "attention": "attn (of prompt chunks)",
    "kv_reads": "attn (of decodes, and of cached tokens)",
    "sequences": "softmax, reduce, topk (sampling); a sequence's share of attn",
    "collectives": "nccl_and_custom_ar",
    "other": "norm, silu, rope, quantize, elementwise, misc",
    "host": "CPU(non-GPU)",
}
"""Each part, in the order in which results show them -> the categories of vLLM's tool that it stands for."""


def split_step(model: StepTimeModel, batch: Batch) -> dict[str, int] | None:
    """Returns a step's nanoseconds by part, which add up to it within rounding; None where the model cannot tell."""
    match model:
        case Roofline():
            return model.split(batch)
        case FittedModel():
            parts = model.parts(batch)
            return {
                "base": parts["gemm"],
                **{name: parts[name] for name in ("attention", "kv_reads", "sequences", "host")},
            }
        case OperatorTableModel():
            parts = model.parts(batch)
            return {
                "layers": parts.get("gemm", 0),
                **{name: parts.get(name, 0) for name in ("attention", "sequences", "collectives", "host")},
            }
        case SlowGpu():
            return _slowed(model, batch)
    return None


def _slowed(model: SlowGpu, batch: Batch) -> dict[str, int] | None:
    """Splits a step as the healthy GPUs of the group see it: they wait for the slow one in the collectives."""
    found = split_step(model.healthy, batch)
    if found is not None:
        waited = model.step_time(batch) - sum(found.values())
        found["collectives"] = found.get("collectives", 0) + max(0, waited)
    return found


class StepMeter:
    """A step-time model that keeps what each step it priced is made of.

    Args:
        model: prices the steps.
        kept: gets a row a step; empty where the model cannot tell parts.
    """

    def __init__(self, model: StepTimeModel, kept: StepSplit) -> None:
        self.name = model.name
        self.calibrated = model.calibrated
        self._model = model
        self._kept = kept

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds."""
        self.keep(batch)
        return self._model.step_time(batch)

    def keep(self, batch: Batch) -> None:
        """Keeps what a step is made of."""
        found = split_step(self._model, batch)
        if found is None:
            return
        kept, num_steps = self._kept, len(self._kept.with_prompts)
        kept.with_prompts.append(int(batch.num_prefill_tokens > 0))
        for name, ns in found.items():
            column = kept.parts.setdefault(name, array("q", bytes(8 * num_steps)))
            column.append(ns)

    def out_of_range(self) -> list[str]:
        """See `StepTimeModel`."""
        return self._model.out_of_range()
