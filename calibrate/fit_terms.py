"""The terms of a fit: what is varied, where it starts, and how far from there it can be believed without data.

The start is the analytical roofline of the model and the GPU. It is also the centre of a wide prior, in units of the
start: data that speak of a term outweigh it a thousandfold; a term that they do not speak of stays near physics instead
of running off, and the report says so. For attention, which data often leave open, the centre is the data sheet's limit
itself, and for reads of the KV cache what other GPUs reach of it: a prior that was learnt from the runs that are left
out would not be one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.deployment import Deployment
from sim.engine.achievable import ATTENTION_EFFICIENCY, KV_EFFICIENCY, gemm_efficiency
from sim.engine.fitted import StepCoefficients
from sim.engine.profile import ClientSide
from sim.engine.profile_terms import Estimate, FittedStepTime, MoeFloor
from sim.engine.roofline import Roofline
from sim.engine.step_time import Batch, ClientLatency
from sim.errors import UserError

CLIENT = "client."
"""Prefix of the terms outside the engine."""

MOE = "moe.growth_us"

REQUEST_TERMS = (
    "floor_us",
    "per_token_us",
    "per_attention_pair_ns",
    "per_decode_us",
    "per_decode_context_token_ns",
    "client.request_ms",
    "client.per_prompt_token_us",
)
"""What request times can tell apart. The host's part and the response's are in the floor and in client.request_ms."""

MIXED_TERMS = ("mixed_eager_us", "per_mixed_decode_context_token_ns")
"""What a step with chunks and decodes costs beyond its tokens; requests tell it apart where a run is saturated."""

STEP_TERMS = (
    "floor_us",
    "per_token_us",
    "per_attention_pair_ns",
    "per_decode_us",
    "per_decode_context_token_ns",
    "per_chunk_context_token_ns",
    "per_request_us",
)
"""What step durations can tell apart."""

_SPREAD = {
    "floor_us": 1.0,
    "per_token_us": 0.7,
    "per_attention_pair_ns": 0.4,
    "per_decode_us": 0.7,
    "per_decode_context_token_ns": 0.12,
    "per_chunk_context_token_ns": 1.0,
    "per_request_us": 20.0,
    MOE: 0.2,
    "mixed_graph_us": 1.0,
    "mixed_eager_us": 1.0,
    "per_mixed_decode_context_token_ns": 1.0,
    "host_us": 5.0,
    "host_per_request_us": 20.0,
    "overlap": 0.5,
    "smoothness": 1.0,
    "client.request_ms": 2.0,
    "client.per_prompt_token_us": 2.0,
    "client.response_ms": 1.0,
}
"""Standard deviation of the prior, as a share of the start. Compute, attention and memory reads are known to within
tens of per cent from the data sheet, all experts' bytes best of all; what a request costs by itself, and the way to the
engine, hardly at all. What a mixed step costs beyond its tokens (launches that no captured
graph saves, a kernel that serves chunks and decodes at once) is of the size of its start, or nothing."""

_START = {
    "per_chunk_context_token_ns": 10.0,
    "per_request_us": 10.0,
    "mixed_graph_us": 500.0,
    "mixed_eager_us": 1000.0,
    "host_us": 1000.0,
    "host_per_request_us": 10.0,
    "overlap": 0.9,
    "smoothness": 0.3,
    "client.request_ms": 5.0,
    "client.per_prompt_token_us": 1.0,
    "client.response_ms": 1.0,
}
"""Where the roofline has no number of its own."""

_READ_EFFICIENCY = 0.88
"""Share of the bandwidth on the data sheet that reads of scattered KV blocks reach: 0.92 on an RTX 4090, 0.83 on an RTX
PRO 6000, from operator timings; no run of requests had a part in it."""

_MIXED_READ = 0.25
"""How much slower a decode reads its context beside a chunk, in one kernel with it: a guess as wide as itself."""

KNOWN_TERMS = tuple(_SPREAD)


@dataclass(frozen=True, slots=True)
class Term:
    """One number of the model that a fit may change.

    Attributes:
        key: as the profile has it: `floor_us`, `client.request_ms`, …
        start: where the search begins, and the prior's centre; in the unit of the key.
        spread: the prior's standard deviation, as a share of the start.
    """

    key: str
    start: float
    spread: float

    @property
    def most(self) -> float:
        """The largest value that makes sense, as a multiple of the start."""
        return 1.0 / self.start if self.key in ("overlap", "smoothness") else math.inf


@dataclass(frozen=True, slots=True)
class ModelForm:
    """What of the step-time model is set, not fitted.

    Attributes:
        tile_tokens: rounding of tokens in the compute term.
        num_experts: experts of a layer; 0: no mixture of experts.
        experts_per_token: experts that a token goes to.
        moe_exponent: how the floor bends with the experts touched.
        graph_sizes: captured CUDA-graph sizes.
        fixed: further keys of `FittedStepTime`, such as tables.
    """

    tile_tokens: int = 1
    num_experts: int = 0
    experts_per_token: int = 0
    moe_exponent: float = 1.0
    graph_sizes: tuple[int, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def step_time(self, values: Mapping[str, Any]) -> FittedStepTime:
        """Returns the profile's section with these values, numbers or estimates."""
        keys: dict[str, Any] = {key: _estimate(value) for key, value in values.items() if "." not in key}
        if self.num_experts:
            keys["moe"] = MoeFloor(
                growth_us=_estimate(values.get(MOE, 0.0)),
                num_experts=self.num_experts,
                experts_per_token=self.experts_per_token,
                exponent=self.moe_exponent,
            )
        return FittedStepTime(
            kind="fitted", tile_tokens=self.tile_tokens, graph_sizes=self.graph_sizes, **{**self.fixed, **keys}
        )

    def coefficients(self, values: Mapping[str, float]) -> StepCoefficients:
        """Returns the numbers as the model wants them."""
        return self.step_time(values).coefficients()


def client_side(values: Mapping[str, Any]) -> ClientSide:
    """Returns the profile's section of the time outside the engine."""
    return ClientSide(
        **{key.removeprefix(CLIENT): _estimate(value) for key, value in values.items() if key.startswith(CLIENT)}
    )


def client_latency(values: Mapping[str, float]) -> ClientLatency:
    """Returns the time outside the engine."""
    return ClientLatency(
        request_ns=round(1e6 * values.get("client.request_ms", 0.0)),
        per_prompt_token_ns=1e3 * values.get("client.per_prompt_token_us", 0.0),
        response_ns=round(1e6 * values.get("client.response_ms", 0.0)),
    )


def start_terms(deployment: Deployment, keys: tuple[str, ...]) -> tuple[Term, ...]:
    """Returns the terms with the roofline of the model on the GPU as their start.

    Raises:
        UserError: a key that no term has.
    """
    for key in keys:
        if key not in KNOWN_TERMS:
            raise UserError(f"{key}: no term of the model; known: {', '.join(KNOWN_TERMS)}")
    starts = {**_START, **_roofline_starts(deployment)}
    return tuple(Term(key, max(starts[key], 1e-6), _SPREAD[key]) for key in keys)


def model_form(deployment: Deployment) -> ModelForm:
    """Returns the form that the model's shape asks for."""
    model = deployment.model
    if not model.is_moe:
        return ModelForm()
    return ModelForm(num_experts=model.num_experts, experts_per_token=model.num_experts_per_tok)


def _roofline_starts(deployment: Deployment) -> dict[str, float]:
    flags, server = deployment.flags, deployment.server
    roofline = Roofline(
        deployment.model,
        deployment.gpu,
        tp=server.tensor_parallel_size,
        pp=server.pipeline_parallel_size,
        dtype=flags.dtype,
        kv_cache_dtype=flags.kv_cache_dtype,
        quantization=flags.quantization,
        interconnect=server.interconnect,
    )
    one, many = (roofline.parts(Batch.of([1] * n)) for n in (1, 64))
    deep = roofline.parts(Batch.of([100_000]))
    half, whole = (roofline.parts(Batch.of([], [(q, 0)])) for q in (4096, 8192))
    pairs = Batch.of([], [(8192, 0)]).attention_pairs
    read = deep["kv_reads"] / 100_000 * KV_EFFICIENCY / _READ_EFFICIENCY
    floor, growth = float(one["gemm"]), 0.0
    model = deployment.model
    if model.is_moe:
        share = model.num_experts_per_tok / model.num_experts
        touched = 1.0 - (1.0 - share) ** 64
        growth = max(0.0, (many["gemm"] - one["gemm"]) / (touched - share))
        floor = max(0.1 * floor, floor - growth * share)
    return {
        "floor_us": floor / 1e3,
        "per_token_us": (whole["gemm"] - half["gemm"]) / 4096 / 1e3,
        "per_attention_pair_ns": whole["attention"] / pairs * gemm_efficiency(deployment.gpu) * ATTENTION_EFFICIENCY,
        "per_decode_us": many["sequences"] / 64 / 1e3,
        "per_decode_context_token_ns": read,
        "per_mixed_decode_context_token_ns": _MIXED_READ * read,
        MOE: growth / 1e3,
    }


def _estimate(value: Any) -> Any:
    return Estimate(value=value) if isinstance(value, int | float) else value


def data_starts(keys: tuple[str, ...], steps: Sequence[tuple[Batch, float]]) -> tuple[Term, ...]:
    """Returns the terms of a fit to steps of an unknown model: starts of the size that the data have, priors wide.

    The floor starts at the shortest tenth of the durations; every other term where it alone, at the largest step, would
    take a tenth of the mean duration.
    """
    if not steps:
        raise UserError("no completed steps in the data")
    durations = sorted(ns for _, ns in steps)
    mean = sum(durations) / len(durations)
    largest = {
        "per_token_us": max(batch.num_tokens for batch, _ in steps),
        "per_attention_pair_ns": max(batch.attention_pairs for batch, _ in steps),
        "per_decode_us": max(batch.num_decodes for batch, _ in steps),
        "per_decode_context_token_ns": max(batch.decode_context for batch, _ in steps),
        "per_chunk_context_token_ns": max(batch.chunk_context for batch, _ in steps),
        "per_mixed_decode_context_token_ns": max(batch.decode_context for batch, _ in steps),
        "per_request_us": max(batch.num_requests for batch, _ in steps),
    }
    terms = []
    for key in keys:
        unit = 1.0 if key.endswith("_ns") else 1e3
        shape = key in ("overlap", "smoothness")
        start = _START[key] if shape else 0.1 * mean / unit / max(1, largest.get(key, 1))
        if key == "floor_us":
            start = durations[len(durations) // 10] / 1e3
        terms.append(Term(key, start, 3.0))
    return tuple(terms)
