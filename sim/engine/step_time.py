"""What a step costs: the composition of a batch, and the models that price it.

`Batch` is all that a step-time model may look at. `StepTimeModel` is the protocol; the analytical roofline is in
`roofline.py`, the fitted profile in `fitted.py`, recorded durations and the oracle's linear cost in `recorded.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

STEP_PARTS = ("gemm", "attention", "kv_reads", "sequences", "collectives", "host")
"""What a step's time is split into, where a model can: weights and matrix products, attention over prompt chunks,
reads of cached keys and values, what each sequence costs by itself (sampling, output), all-reduces, the host's part
that is not hidden."""


@dataclass(init=False, slots=True)
class Batch:
    """The composition of one engine step.

    A *decode* is a request that gets exactly one token (the kernels see it so), a *chunk* one that gets more.

    Attributes:
        num_requests: requests scheduled.
        num_prefill_tokens: Σ tokens of the chunks.
        num_decodes: requests that get exactly one token.
        attention_pairs: Σ over chunks of q·ctx + q·(q+1)/2, the query-key pairs of a causal chunk of q tokens after
            ctx computed ones.
        decode_context: Σ over decodes of the tokens computed before the step.
        chunk_context: Σ over chunks of the tokens computed before the step.
        chunks: the (q, ctx) of each chunk, in scheduling order.
    """

    num_requests: int
    num_prefill_tokens: int
    num_decodes: int
    attention_pairs: int
    decode_context: int
    chunk_context: int
    chunks: tuple[tuple[int, int], ...]

    def __init__(  # noqa: PLR0917  # made once a step; written out, it is compiled too
        self,
        num_requests: int,
        num_prefill_tokens: int,
        num_decodes: int,
        attention_pairs: int,
        decode_context: int,
        chunk_context: int,
        chunks: tuple[tuple[int, int], ...],
    ) -> None:
        self.num_requests = num_requests
        self.num_prefill_tokens = num_prefill_tokens
        self.num_decodes = num_decodes
        self.attention_pairs = attention_pairs
        self.decode_context = decode_context
        self.chunk_context = chunk_context
        self.chunks = chunks

    @property
    def num_tokens(self) -> int:
        """All tokens of the step."""
        return self.num_prefill_tokens + self.num_decodes

    @classmethod
    def of(cls, decode_contexts: Sequence[int] = (), chunks: Sequence[tuple[int, int]] = ()) -> Batch:
        """Returns the batch of decodes with these contexts and chunks of these (tokens, context)."""
        return cls(
            num_requests=len(decode_contexts) + len(chunks),
            num_prefill_tokens=sum(q for q, _ in chunks),
            num_decodes=len(decode_contexts),
            attention_pairs=sum(q * ctx + q * (q + 1) // 2 for q, ctx in chunks),
            decode_context=sum(decode_contexts),
            chunk_context=sum(ctx for _, ctx in chunks),
            chunks=tuple(chunks),
        )


class StepTimeModel(Protocol):
    """Prices a step."""

    @property
    def name(self) -> str:
        """The profile's name, or `analytical`."""

    @property
    def calibrated(self) -> bool:
        """Whether the numbers were fitted to a real server."""

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds, host overhead included where it is not hidden."""

    def out_of_range(self) -> list[str]:
        """Returns one sentence for each direction in which a priced batch left the calibrated range, so far."""


@dataclass(frozen=True, slots=True)
class ClientLatency:
    """Time outside the engine: it delays the client and does not hold the batch.

    vLLM's API server hands requests on one after another, so they reach the engine in the order in which they were
    sent: a long prompt is not overtaken by a short one that was sent with it.

    Attributes:
        request_ns: from the client's send to the engine's queue (HTTP, tokenizer), fixed part.
        per_prompt_token_ns: the part of it that grows with the prompt.
        response_ns: from the end of a step to the client's eyes.
        serial_ns: of requests sent at the same time, how much later than the one before each reaches the engine.
    """

    request_ns: int = 0
    per_prompt_token_ns: float = 0.0
    response_ns: int = 0
    serial_ns: int = 0

    def arrival_ns(self, sent_ns: int, num_prompt_tokens: int, previous_ns: int) -> int:
        """Returns when a request reaches the engine.

        Args:
            sent_ns: when its client sent it.
            num_prompt_tokens: of its prompt.
            previous_ns: when the one sent before it reaches the engine; minus `serial_ns` or less where there is none.
        """
        way_ns = self.request_ns + round(self.per_prompt_token_ns * num_prompt_tokens)
        return max(sent_ns + way_ns, previous_ns + self.serial_ns)
