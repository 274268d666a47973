"""Step times of a model of which a part lies in the host's memory: the collapse of throughput, from its cause.

The layers on the GPU take their share of the whole model's step. Those in RAM are read from there once a step; for
large batches llama.cpp instead copies their weights to the GPU and computes there, so they take the shorter of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.engine.step_time import Batch, StepTimeModel

RAM_BYTES_PER_S = 60e9
"""Two channels of DDR5, as a desktop has them, at about 80 % of their peak. An assumption."""

CPU_FLOPS = 1e12
"""What the products on quantized weights reach on a desktop CPU. An assumption."""

_COPIED_FROM = 32  # llama.cpp: smaller batches are computed where the weights are


@dataclass(frozen=True, slots=True)
class Split:
    """What lies where.

    Attributes:
        gpu_share: share of the layers on the GPU.
        ram_weight_bytes: weights in RAM that every token reads.
        ram_expert_bytes: weights in RAM of routed experts, of which a step reads those that some token goes to.
        missed: share of the experts that one token does not go to.
        ram_params: parameters that a token uses there.
        ram_bytes_per_token: bytes of context in RAM that one cached token takes.
        ram_bytes_per_s: bandwidth of the host's memory.
        cpu_flops: what the CPU computes.
        pcie_bytes_per_s: from RAM to the GPU; 0: there is no GPU.
    """

    gpu_share: float
    ram_weight_bytes: float
    ram_expert_bytes: float
    missed: float
    ram_params: float
    ram_bytes_per_token: float
    ram_bytes_per_s: float = RAM_BYTES_PER_S
    cpu_flops: float = CPU_FLOPS
    pcie_bytes_per_s: float = 0.0


class OffloadedModel:
    """Prices the steps of a model that is partly in the host's memory.

    Args:
        whole: prices a step with every layer on the GPU.
        split: what lies where.
    """

    def __init__(self, whole: StepTimeModel, split: Split) -> None:
        self.whole = whole
        self.split = split
        self.name = whole.name
        self.calibrated = False  # nobody measured this split

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds."""
        split, tokens, whole = self.split, batch.num_tokens, self.whole.step_time(batch)
        read = split.ram_weight_bytes + split.ram_expert_bytes * (1 - split.missed**tokens)
        seconds = max(read / split.ram_bytes_per_s, 2 * split.ram_params * tokens / split.cpu_flops)
        if tokens >= _COPIED_FROM and split.pcie_bytes_per_s:
            copied = read / split.pcie_bytes_per_s + (1 - split.gpu_share) * whole / 1e9
            seconds = min(seconds, copied)
        context = batch.decode_context + batch.chunk_context
        seconds += split.ram_bytes_per_token * context / split.ram_bytes_per_s
        return round(split.gpu_share * whole + 1e9 * seconds)

    def out_of_range(self) -> list[str]:
        """Returns what the model of the whole says of its own range."""
        return self.whole.out_of_range()
