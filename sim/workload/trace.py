"""A recorded trace in memory: a handful of arrays, so that a million requests take some tens of megabytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order in which they were sent; each array has one entry a request, except as noted.

    Attributes:
        sent_ns: when it was sent, from the start of the recording; ascending.
        prompt_tokens: length of the prompt, ≥ 1.
        output_tokens: length of the answer, ≥ 1.
        wanted_ns: when the client wanted to send it, before a semaphore of its own; None: when it was sent.
        class_ids: index into class_names; None: all are of one class.
        class_names: empty when class_ids is None.
        user_ids: who sent it; None: unknown.
        priorities: vLLM's; None: all are 0.
        block_hashes: the prompts' blocks of `block_tokens` tokens, all requests' one after the other; equal numbers
            are equal text. None: no prompt is known to share anything.
        block_ends: where each request's blocks end in block_hashes.
        block_tokens: length of a block; the last one of a prompt may be shorter.
        warnings: what was left out, one sentence each.
    """

    sent_ns: Int64s
    prompt_tokens: Int64s
    output_tokens: Int64s
    wanted_ns: Int64s | None = None
    class_ids: NDArray[np.int32] | None = None
    class_names: tuple[str, ...] = ()
    user_ids: NDArray[np.int32] | None = None
    priorities: Int64s | None = None
    block_hashes: Int64s | None = None
    block_ends: Int64s | None = None
    block_tokens: int = 512
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sent_ns)

    def take(self, rows: NDArray[np.intp]) -> Trace:
        """Returns these requests, in this order."""
        hashes, ends = self.block_hashes, self.block_ends
        if hashes is not None and ends is not None:
            starts = np.concatenate(([0], ends[:-1]))
            hashes = np.concatenate([hashes[starts[row] : ends[row]] for row in rows] or [hashes[:0]])
            ends = np.cumsum((ends - starts)[rows])
        return Trace(
            sent_ns=self.sent_ns[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            wanted_ns=None if self.wanted_ns is None else self.wanted_ns[rows],
            class_ids=None if self.class_ids is None else self.class_ids[rows],
            class_names=self.class_names,
            user_ids=None if self.user_ids is None else self.user_ids[rows],
            priorities=None if self.priorities is None else self.priorities[rows],
            block_hashes=hashes,
            block_ends=ends,
            block_tokens=self.block_tokens,
            warnings=self.warnings,
        )

    def first(self, num_requests: int) -> Trace:
        """Returns the first requests, or all when there are no more than that."""
        return self if num_requests >= len(self) else self.take(np.arange(num_requests))

    def in_order(self) -> Trace:
        """Returns the requests sorted by `sent_ns`; those of the same time keep their order."""
        if (self.sent_ns[1:] >= self.sent_ns[:-1]).all():
            return self
        return self.take(np.argsort(self.sent_ns, kind="stable"))
