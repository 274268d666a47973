"""What a diagnosis says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Resource = Literal[
    "max_num_seqs", "kv_blocks", "token_budget", "decode_speed", "client", "admission_limit", "max_model_len",
    "num_parallel", "model_loads", "static_batches",
]  # fmt: skip
"""What may stand in the way; the last three are those of servers that are not vLLM."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What stands in the way.

    Attributes:
        resource: the resource that bound.
        evidence: one sentence with the numbers.
        cure: what to change, in a few words.
        notes: what else stands out.
    """

    resource: Resource
    evidence: str
    cure: str
    notes: tuple[str, ...] = ()
