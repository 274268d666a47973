"""The analytical step-time model: what the hardware's data sheet allows, times what real kernels reach of it.

    step = layers + logits + attention of chunks + KV reads + sequences + collectives  (+ host when synchronous)

where layers and logits are matrix products, max(bytes / bandwidth, flops / peak) each. Weights are read once a step,
whatever the number of tokens; of a mixture of experts only those that some token goes to. Weight-only formats (AWQ,
GPTQ, MXFP4) are read in 4 bits and computed in 16.

It knows no real server, so it is *uncalibrated*, and shown so wherever its numbers appear. Take it as right within
about a third; `tests/sim/engine/test_roofline.py` holds it against measured servers. Left out: padding of experts to
tiles, compute that memory reads only partly hide (a decode step of 128-256 sequences is up to 30 % slower), experts
that are asked for unevenly, speculative decoding.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, Self

from sim.engine import achievable as reach
from sim.engine.step_time import Batch
from sim.errors import UserError
from sim.hardware import Gpu
from sim.models import ModelSpec, Quantization
from sim.models.quantization import quantization_from_flag

Interconnect = Literal["nvlink", "pcie"]


class Roofline:
    """Prices steps from the model's shape and the GPU's data sheet.

    Args:
        model: the model's shape.
        gpu: one GPU.
        tp: tensor parallel size, the GPUs that share each layer: two all-reduces a layer.
        pp: pipeline parallel size: a step is a batch's way through all stages, which is what its requests see.
        expert_ranks: data-parallel ranks over which the experts are spread (expert parallelism); each of them is taken
            to bring as many tokens as this one.
        dtype: of activations and unquantized weights; `auto` is 16 bits.
        kv_cache_dtype: of the KV cache; `auto` is the dtype.
        quantization: the flag, where it overrides what the checkpoint declares.
        interconnect: by default NVLink where the GPU has it.
        enforce_eager: no CUDA graphs: a step lasts at least as long as launching its kernels.
        async_scheduling: the host's work hides behind the device's.

    Raises:
        UserError: NVLink on a GPU without it, or an unknown quantization.
    """

    name = "analytical"
    calibrated = False

    def __init__(
        self,
        model: ModelSpec,
        gpu: Gpu,
        *,
        tp: int = 1,
        pp: int = 1,
        expert_ranks: int = 1,
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        quantization: str | None = None,
        interconnect: Interconnect | None = None,
        enforce_eager: bool = False,
        async_scheduling: bool = True,
    ) -> None:
        stored = model.quantization
        weights = stored if quantization is None else quantization_from_flag(quantization, stored)
        self.async_scheduling = async_scheduling
        self._products = _Products.of(model, gpu, tp, expert_ranks, dtype, weights)
        self._attention = _Attention.of(model, gpu, tp, _bytes_of(kv_cache_dtype, dtype))
        self._sequence_ns = _sequence_ns(model, gpu, tp, dtype)
        self._links = _Links.of(
            model, gpu, (tp, pp, expert_ranks), interconnect=interconnect, element=_bytes_of("auto", dtype)
        )  # fmt: skip
        self._launch_ns = model.num_layers * reach.EAGER_LAYER_NS if enforce_eager else 0
        self._graph_sizes = () if enforce_eager else reach.GRAPH_SIZES
        self._by_tokens: list[float] = []  # layers + collectives
        self._by_requests: list[float] = []  # logits + sequences

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds, the host's part included where it is not hidden."""
        tokens = batch.num_prefill_tokens + batch.num_decodes
        requests = batch.num_requests
        if tokens >= len(self._by_tokens) or requests >= len(self._by_requests):
            self._grow(max(tokens, requests))
        a = self._attention
        device = (
            self._by_tokens[tokens]
            + self._by_requests[requests]
            + a.pair_ns * batch.attention_pairs
            + a.decode_context_ns * batch.decode_context
            + a.chunk_context_ns * batch.chunk_context
        )
        if a.window:
            pairs_ns, reads_ns = a.sliding_ns(batch)
            device += pairs_ns + reads_ns
        host = reach.HOST_STEP_NS + reach.HOST_REQUEST_NS * requests
        if not self.async_scheduling:
            device += host
        elif host > device:
            device = float(host)
        return int(device + 0.5)

    def parts(self, batch: Batch) -> dict[str, int]:
        """Returns the step's nanoseconds by part (`STEP_PARTS`); they add up to `step_time` within rounding."""
        a, requests = self._attention, batch.num_requests
        layers = self._layers_ns(batch.num_tokens)
        kv_reads = a.decode_context_ns * batch.decode_context + a.chunk_context_ns * batch.chunk_context
        attention = a.pair_ns * batch.attention_pairs
        if a.window:
            pairs_ns, reads_ns = a.sliding_ns(batch)
            attention += pairs_ns
            kv_reads += reads_ns
        device = {
            "gemm": layers + self._products.logits.time_ns(requests),
            "attention": attention,
            "kv_reads": kv_reads,
            "sequences": self._sequence_ns * requests,
            "collectives": self._links.time_ns(self._padded(batch.num_tokens)),
        }
        host = max(0.0, self.step_time(batch) - sum(device.values(), 0.0))
        return {part: round(ns) for part, ns in (device | {"host": host}).items()}

    def split(self, batch: Batch) -> dict[str, int]:
        """Returns the same by the names of `sim.engine.step_split`: dense products, experts and the rest apart."""
        parts, products = self.parts(batch), self._products
        padded = self._padded(batch.num_tokens)
        experts, other = products.experts_ns(padded), products.fixed_ns
        dense = products.dense.time_ns(padded) + products.logits.time_ns(batch.num_requests)
        launching = max(0, parts["gemm"] - round(dense + experts + other))  # eager: longer than the kernels themselves
        return {
            "gemm": round(dense),
            "experts": round(experts),
            **{name: parts[name] for name in ("attention", "kv_reads", "sequences", "collectives")},
            "other": round(other),
            "host": parts["host"] + launching,
        }

    def out_of_range(self) -> list[str]:
        """Returns nothing: there is no calibrated range to leave (and no calibration: see `calibrated`)."""
        return []

    def _grow(self, count: int) -> None:
        """Extends the look-up lists to `count`, in powers of two so that they are extended rarely."""
        for n in range(len(self._by_tokens), 1 << count.bit_length()):
            self._by_tokens.append(self._layers_ns(n) + self._links.time_ns(self._padded(n)))
            self._by_requests.append(self._products.logits.time_ns(n) + self._sequence_ns * n)

    def _layers_ns(self, tokens: int) -> float:
        return max(self._products.layers_ns(self._padded(tokens)), self._launch_ns)

    def _padded(self, tokens: int) -> int:
        """Returns the captured CUDA-graph size that the tokens run in, where there is one."""
        sizes = self._graph_sizes
        return sizes[bisect_left(sizes, tokens)] if sizes and 0 < tokens <= sizes[-1] else tokens


@dataclass(frozen=True, slots=True)
class _Gemm:
    """Matrix products under one roof: nanoseconds to read the weights, and to compute one row with them."""

    read_ns: float = 0.0
    row_ns: float = 0.0

    def time_ns(self, rows: int) -> float:
        return max(self.read_ns, self.row_ns * _tiled(rows))


def _tiled(rows: int) -> int:
    """Returns the rows that the kernel computes: whole tiles."""
    if rows > reach.TILES[-1]:
        return -(-rows // reach.TILES[-1]) * reach.TILES[-1]
    return reach.TILES[bisect_left(reach.TILES, rows)] if rows else 0


@dataclass(frozen=True, slots=True)
class _Products:
    """The model's matrix products on one GPU, and what every layer costs beside them.

    Attributes:
        dense: attention projections, MLPs, shared experts, routers, of all layers.
        expert: one routed expert in each layer of experts: read_ns to read it; row_ns to compute a token in all of
            the experts that it goes to.
        logits: the output head.
        num_experts: E, of a layer.
        experts_per_token: k.
        fixed_ns: norms, activations and gaps of all layers.
        expert_ranks: ranks that share the experts: each reads its part of those that the tokens of all go to.
    """

    dense: _Gemm
    expert: _Gemm
    logits: _Gemm
    num_experts: int
    experts_per_token: int
    fixed_ns: float
    expert_ranks: int

    @classmethod
    def of(  # noqa: PLR0917
        cls, model: ModelSpec, gpu: Gpu, tp: int, expert_ranks: int, dtype: str, weights: Quantization | None
    ) -> Self:
        element = _bytes_of("auto", dtype)
        bandwidth = gpu.bandwidth_bytes_per_s * reach.MEMORY_EFFICIENCY
        plain, packed = _flops(gpu, dtype, None), _flops(gpu, dtype, weights)
        small = element if weights is None else weights.bytes_per_param
        blocks = small if weights is None or not weights.experts_only else element
        layers = [model.layer(index) for index in range(model.num_layers)]
        replicas = {kind: math.ceil(model.kv_heads(kind) / tp) / model.kv_heads(kind) for kind in set(model.kinds)}
        linear = sum(
            (layer.heads + layer.mlp) / tp + layer.kv * replicas[kind] + layer.replicated
            for layer, kind in zip(layers, model.kinds, strict=True)
        )
        router = sum(layer.router for layer in layers)
        expert = sum(layer.experts for layer in layers) / tp / model.num_experts if model.is_moe else 0.0
        head = model.vocab_size * model.hidden_size / tp
        dense_flops = packed if blocks == small else plain
        unpacked = weights is not None and weights.weights_only
        expert_flops = packed * (reach.UNPACKED_EXPERT_EFFICIENCY if unpacked else reach.EXPERT_EFFICIENCY)
        return cls(
            dense=_gemm(linear * blocks + router * element, linear + router, bandwidth, dense_flops),
            expert=_gemm(expert * small, expert * model.num_experts_per_tok, bandwidth, expert_flops),
            logits=_gemm(head * element, head, bandwidth, plain),
            num_experts=model.num_experts if model.is_moe else 0,
            experts_per_token=model.num_experts_per_tok,
            fixed_ns=model.num_layers * reach.LAYER_NS + model.num_moe_layers * reach.MOE_LAYER_NS,
            expert_ranks=expert_ranks,
        )

    def layers_ns(self, tokens: int) -> float:
        """Returns the time of all layers but attention itself; a chance expert is touched as if tokens chose freely."""
        return self.fixed_ns + self.dense.time_ns(tokens) + self.experts_ns(tokens)

    def experts_ns(self, tokens: int) -> float:
        """Returns the time of the routed experts of all layers."""
        if not self.num_experts:
            return 0.0
        missed = (1.0 - self.experts_per_token / self.num_experts) ** (tokens * self.expert_ranks)
        touched = self.num_experts * (1.0 - missed) / self.expert_ranks
        return max(self.expert.read_ns * touched, self.expert.row_ns * _tiled(tokens))


def _gemm(num_bytes: float, params: float, bandwidth: float, flops: float) -> _Gemm:
    return _Gemm(read_ns=1e9 * num_bytes / bandwidth, row_ns=1e9 * 2 * params / flops)


def _flops(gpu: Gpu, dtype: str, weights: Quantization | None) -> float:
    """Returns what matrix products reach per second: the type they are computed in decides, not that of the weights."""
    peak = gpu.bf16_flops
    if weights is not None and not weights.weights_only:
        eight_bits = gpu.int8_ops if weights.method == "w8a8" else gpu.fp8_flops
        peak = eight_bits or peak  # without such units vLLM unpacks the weights to 16 bits
        if weights.method == "nvfp4":
            peak = 2 * peak if gpu.compute_capability >= (10, 0) else gpu.bf16_flops
    elif _bytes_of("auto", dtype) == 4:
        peak /= 2  # TF32
    return peak * reach.gemm_efficiency(gpu)


def _bytes_of(kv_cache_dtype: str, dtype: str) -> float:
    name = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if name.startswith(("fp8", "int8")):
        return 1.0
    return 4.0 if name in ("float", "float32") else 2.0


@dataclass(frozen=True, slots=True)
class _Attention:
    """What attention costs, in nanoseconds, summed over the layers.

    Full layers: a query-key pair of a chunk, a cached token read by a decode, one read by a chunk. Sliding layers see
    at most `window` tokens: `sliding_pair_ns`, `sliding_read_ns` are of a pair and of a cached token within it.
    """

    pair_ns: float
    decode_context_ns: float
    chunk_context_ns: float
    window: int
    sliding_pair_ns: float
    sliding_read_ns: float

    @classmethod
    def of(cls, model: ModelSpec, gpu: Gpu, tp: int, kv_bytes: float) -> Self:
        flops = gpu.bf16_flops * reach.gemm_efficiency(gpu) * reach.ATTENTION_EFFICIENCY
        bandwidth = gpu.bandwidth_bytes_per_s * reach.KV_EFFICIENCY
        heads = model.num_attention_heads / tp

        def pair(kind: Literal["full", "sliding"]) -> float:
            if model.is_mla:
                return 1e9 * 2 * heads * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim) / flops
            return 1e9 * 4 * heads * model.head_size(kind) / flops

        def read(kind: Literal["full", "sliding"]) -> float:
            if model.is_mla:  # the latent vector is on every GPU
                return 1e9 * (model.kv_lora_rank + model.qk_rope_head_dim) * kv_bytes / bandwidth
            kv_heads = math.ceil(model.kv_heads(kind) / tp)
            return 1e9 * 2 * kv_heads * model.head_size(kind) * kv_bytes / bandwidth

        # A decode of latent attention works on the latent vectors themselves, every head on all of them: compute-bound.
        latent = 1e9 * 2 * heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim) / flops if model.is_mla else 0.0
        full, sliding = model.num_full_layers, model.num_sliding_layers
        return cls(
            pair_ns=full * pair("full"),
            decode_context_ns=full * max(read("full"), latent),
            chunk_context_ns=full * read("full"),
            window=model.sliding_window or 0 if sliding else 0,
            sliding_pair_ns=sliding * pair("sliding"),
            sliding_read_ns=sliding * read("sliding"),
        )

    def sliding_ns(self, batch: Batch) -> tuple[float, float]:
        """Returns the chunks' attention and all KV reads in the sliding layers, where a token sees `window` tokens.

        A batch holds the sum of its decodes' contexts, not each of them, so the cap is put on the sum: exact when all
        are shorter, or all longer, than the window; else too high.
        """
        window = self.window
        reads = min(batch.decode_context, batch.num_decodes * window)
        pairs = 0
        for q, ctx in batch.chunks:
            growing = min(q, window - ctx) if ctx < window else 0  # tokens that still see all before them
            pairs += growing * ctx + growing * (growing + 1) // 2 + (q - growing) * window
            reads += min(ctx, window)
        return self.sliding_pair_ns * pairs, self.sliding_read_ns * reads


def _sequence_ns(model: ModelSpec, gpu: Gpu, tp: int, dtype: str) -> float:
    """Returns what one request of a step costs by itself: its share of attention kernels, its state, its sampling."""
    attention = (model.num_full_layers + model.num_sliding_layers) * reach.SEQUENCE_LAYER_NS
    num_bytes = 4 * model.vocab_size * reach.SAMPLER_PASSES
    if model.state_space is not None:  # read, and written back
        state = model.state_space.state_bytes(tp, int(_bytes_of("auto", dtype)))
        num_bytes += 2 * model.num_state_layers * state
    return attention + 1e9 * num_bytes / (gpu.bandwidth_bytes_per_s * reach.KV_EFFICIENCY)


@dataclass(frozen=True, slots=True)
class _Links:
    """Traffic between GPUs: two all-reduces a layer for tensor parallelism, a hand-over between pipeline stages.

    Ranks that share their experts gather each other's tokens before a layer of them and hand the results back after it
    (vLLM's default `allgather_reducescatter`): each of the two sends a row to every other rank.
    """

    fixed_ns: float
    token_ns: float

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        gpu: Gpu,
        sizes: tuple[int, int, int],
        *,
        interconnect: Interconnect | None,
        element: float,
    ) -> Self:
        tp, pp, ranks = sizes
        if interconnect == "nvlink" and gpu.nvlink_bytes_per_s is None:
            raise UserError(f"server.interconnect: {gpu.name} has no NVLink; allowed: pcie")
        kind = interconnect or ("pcie" if gpu.nvlink_bytes_per_s is None else "nvlink")
        link = gpu.pcie_bytes_per_s if kind == "pcie" else gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s
        row_ns = 1e9 * model.hidden_size * element / (link * reach.LINK_EFFICIENCY)
        reduces = 2 * model.num_layers if tp > 1 else 0
        # A ring sends each row 2·(tp-1)/tp times; the latency does not grow with a switch between the GPUs.
        exchanges = 2 * model.num_moe_layers if ranks > 1 else 0
        return cls(
            fixed_ns=(reduces + exchanges + pp - 1) * reach.ALL_REDUCE_NS[kind],
            token_ns=(reduces * 2 * (tp - 1) / tp + exchanges * (ranks - 1) + pp - 1) * row_ns,
        )

    def time_ns(self, tokens: int) -> float:
        return self.fixed_ns + self.token_ns * tokens
