"""A prior from `aiconfigurator-core`: what its tables of measured kernels say of GPUs that nobody measured here.

The library (an extra: `pip install 'headcount[aiconfigurator]'`) prices single engine steps of a model on a GPU. A
profile holds few terms, so made-up steps of all sizes are priced once and the terms fitted to them; predictions then
need the library no more. No run of a server is behind it, so the profile is marked a prior.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from calibrate.fit import FitOptions, FitOutcome, step_outcome
from calibrate.fit_steps import fit_steps
from calibrate.fit_terms import ModelForm, Term
from calibrate.replay_server import ServerChoice
from sim.engine.step_time import Batch
from sim.errors import UserError
from sim.hardware import find_gpu

SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "a100-80gb-pcie": "a100_pcie",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "h100-80gb": "h100_sxm",
    "h100-pcie": "h100_pcie",
    "h200": "h200_sxm",
    "l4": "l4",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Our names of the GPUs that it may have tables of -> its names."""

TERMS = {
    "floor_us": 1000.0,
    "per_attention_pair_ns": 2.0,
    "per_decode_us": 10.0,
    "per_decode_context_token_ns": 50.0,
    "per_mixed_decode_context_token_ns": 10.0,
    "mixed_eager_us": 500.0,
}
"""What is fitted beside the table of what depends on tokens alone, and about where it starts. The library prices no
chunk after a cached one, and knows nothing of the host."""

_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_NUM_STEPS = 800
_SHARE_DECODES_ONLY = 0.5
_SHARE_PROMPTS_ONLY = 0.2
_LONGEST_CHUNK = 8192


class StepPricer(Protocol):
    """The part of the library's `EngineHandle` that is asked; durations in milliseconds."""

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        """Returns the time of a step of decodes, each of a prompt of `isl` and half of `osl` answered tokens."""

    def mixed_step_latency(self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int) -> float:
        """Returns the time of a step that computes prompts of `isl` tokens beside such decodes."""

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int
    ) -> tuple[float, float, float, float]:
        """Returns the same with its parts: all, what depends on tokens alone, attention of prompts, of decodes."""


def export(server: ServerChoice, options: FitOptions) -> FitOutcome:
    """Fits a profile, marked a prior, to steps that the library prices.

    Args:
        server: model, GPU and flags.
        options: name, date and the rest; its source, data and notes are set here.

    Raises:
        UserError: the library is not installed, or knows the GPU or the model not.
    """
    pricer, release = open_library(server)
    deployment = server.plan()
    budget = deployment.scheduler_config.max_num_batched_tokens
    steps = list(priced_steps(pricer, min(256, deployment.scheduler_config.max_num_seqs), budget))
    form = ModelForm(fixed={"compute_table_us": token_table(pricer, budget), "overlap": 0.0})
    found = fit_steps(steps, tuple(Term(key, start, 10.0) for key, start in TERMS.items()), form)
    told = replace(
        options,
        source=f"aiconfigurator-core {release}: measured kernels, added up to steps; no run of a server.",
        data=(f"{len(steps)} made-up steps",),
        notes=(*options.notes, "Errors of `steps` are those of the few terms against the library's own step times."),
    )
    outcome = step_outcome(found, server, told, [])
    return FitOutcome(outcome.profile.model_copy(update={"calibrated": "prior"}), outcome.report)


def open_library(server: ServerChoice) -> tuple[StepPricer, str]:
    """Returns the library's pricer of this server, and the library's release.

    Raises:
        UserError: it is not installed, or has no tables of the GPU or no shape of the model.
    """
    gpu = find_gpu(server.server.gpu).name
    if gpu not in SYSTEMS:
        raise UserError(f"{gpu}: aiconfigurator-core has no tables of this GPU; it has of {', '.join(SYSTEMS)}")
    try:
        from importlib.metadata import version

        from aiconfigurator_core.sdk import EngineHandle
    except ImportError:
        raise UserError(
            "aiconfigurator-core is not installed: pip install 'headcount[aiconfigurator]', or fit to measurements"
        ) from None
    degree = server.server.tensor_parallel_size
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            handle = EngineHandle.compile(server.server.model, SYSTEMS[gpu], "vllm", tp_size=degree)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"aiconfigurator-core cannot price {server.server.model} on {gpu}: {reason}") from None
    return handle, version("aiconfigurator-core")


def token_table(pricer: StepPricer, most: int) -> tuple[tuple[int, float], ...]:
    """Returns (tokens, microseconds) of what depends on the tokens of a step alone."""
    counts = sorted({*(count for count in _COUNTS if count < most), most})
    return tuple((n, float(f"{1e3 * pricer.mixed_step_breakdown(n, 0, n, 2)[1]:.5g}")) for n in counts)


def priced_steps(pricer: StepPricer, max_num_seqs: int, max_num_batched_tokens: int) -> Iterator[tuple[Batch, float]]:
    """Makes up steps of all sizes and contexts and prices them: composition and nanoseconds.

    The library has one length for the prompts of a step and for those whose answers go on beside them; steps are made
    so that both have it, and as full as the token budget allows.
    """
    rng = np.random.default_rng(0)
    for _ in range(_NUM_STEPS):
        kind = rng.random()
        answered = _log_uniform(rng, 16, 2048)
        if kind < _SHARE_DECODES_ONLY:
            decodes, prompt = _log_uniform(rng, 1, max_num_seqs), _log_uniform(rng, 64, 16_384)
            batch = Batch.of([prompt + answered // 2] * decodes)
            yield batch, 1e6 * pricer.decode_step_latency(decodes, prompt, answered)
            continue
        decodes = 0 if kind < _SHARE_DECODES_ONLY + _SHARE_PROMPTS_ONLY else _log_uniform(rng, 1, max_num_seqs)
        most = min(_LONGEST_CHUNK, max_num_batched_tokens - decodes)
        if most < 16:
            continue
        prompt = _log_uniform(rng, 16, most)
        number = int(rng.integers(1, max(1, min(8, most // prompt)) + 1))
        batch = Batch.of([prompt + answered // 2] * decodes, [(prompt, 0)] * number)
        yield batch, 1e6 * pricer.mixed_step_latency(number * prompt, decodes, prompt, answered)


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
