"""Which rules an Ollama release follows. Everything that a version decides is here, each with where it comes from.

Sources are files of github.com/ollama/ollama and the release in which they changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sim.errors import UserError

Queue = Literal["faq", "source"]
"""Who waits while a model loads. `faq`: all requests do (docs/faq.mdx; every release before 0.11.5, where each request
went through the scheduler's channel). `source`: requests for a loaded model go straight to it (server/sched.go since
0.11.5), even while it waits to be evicted."""

Batching = Literal["decode_first", "round_robin"]
"""How a runner fills a batch. `decode_first`: llama-server (since 0.30): the next token of every generating slot, then
prompts in slot order. `round_robin`: the Go runner before it: slot after slot, from where the last batch left off."""

GIB = 2**30

DEFAULT_KEEP_ALIVE_NS = 300 * 10**9
DEFAULT_NUM_BATCH = 512
MODELS_PER_GPU = 3  # sched.go: defaultModelsPerGPU
OPEN_ENDED_CONTEXTS = 10  # llama_server.go: num_predict is at most so many times num_ctx
CONTEXT_TIERS: tuple[tuple[int, int], ...] = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4_096))
"""Since 0.15.5 (routes.go): at least so many bytes of GPU memory in all -> the automatic context."""

ONE_SLOT_FAMILIES = re.compile(r"mllama|qwen-?3-?vl|qwen-?3\.?5|qwen-?3-?next|lfm-?2|nemotron-?h")
"""Families that always get one slot (sched.go)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one release.

    Attributes:
        version: the release, as numbers.
        num_parallel: OLLAMA_NUM_PARALLEL where it is not set; 0: automatic.
        automatic_parallel: what automatic means, where memory allows; else 1.
        max_queue: OLLAMA_MAX_QUEUE where it is not set.
        queue: who waits while a model loads.
        batching: how a runner fills a batch.
        context_length: num_ctx where nothing sets it; None: by the GPUs' memory.
        automatic_batch: num_batch grows with the context.
        fit_share: the part of free GPU memory that a model beside others may take.
        tells_cached: responses have `prompt_eval_cached_count`.
    """

    version: tuple[int, ...]
    num_parallel: int
    automatic_parallel: int
    max_queue: int
    queue: Queue
    batching: Batching
    context_length: int | None
    automatic_batch: bool
    fit_share: float
    tells_cached: bool

    def automatic_context(self, total_bytes: float) -> int:
        """Returns num_ctx where nothing sets it, from the memory of all GPUs together."""
        if self.context_length is not None:
            return self.context_length
        return next(context for least, context in CONTEXT_TIERS if total_bytes >= least)

    def smaller_context(self, num_ctx: int) -> int | None:
        """Returns the automatic context after a load that ran out of memory; None: there is none below."""
        if self.context_length is not None:
            return None
        return next((context for _, context in CONTEXT_TIERS if context < num_ctx), None)


def rules_for(version: str) -> Rules:
    """Returns the rules of a release, such as `0.33` or `v0.11.5-rc2`.

    Raises:
        UserError: not a version.
    """
    release = _parse(version)
    llama_server = release >= (0, 30)  # commit 9db4bdbad
    return Rules(
        version=release,
        num_parallel=1 if release >= (0, 9, 7) else 0,  # PR 11330
        automatic_parallel=2 if release >= (0, 9) else 4,
        max_queue=512 if release >= (0, 1, 34) else 10,  # PR 4144
        queue="source" if release >= (0, 11, 5) else "faq",  # commit d5a0d8d90
        batching="decode_first" if llama_server else "round_robin",
        context_length=_context_length(release),
        automatic_batch=llama_server,
        fit_share=0.8 if llama_server else 1.0,
        tells_cached=release >= (0, 33, 3),
    )


def _context_length(release: tuple[int, ...]) -> int | None:
    if release >= (0, 15, 5):  # commit 0334ffa62
        return None
    return 4096 if release >= (0, 6) else 2048


def _parse(version: str) -> tuple[int, ...]:
    if re.match(r"dev|main|nightly", version):
        return (999,)
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if match is None:
        raise UserError(f'ollama.version: not a version; got {version!r}; write it as "0.33" or "0.11.5"')
    return tuple(int(part) for part in match[1].split("."))
