"""What real kernels reach of a data sheet, and what lies beside the matrix products: the constants of the roofline.

Each has its source or is marked an assumption. *Tables* are the operator timings taken inside vLLM 0.19 for
Llama-3.1-8B on an RTX 4090 and for Qwen3 on an RTX PRO 6000 (github.com/casys-kaist/LLMServingSim, profiler/). *H100
fit* is a fit to a public run of Qwen3-14B in bf16 on one H100: floor 11 ms, 41 µs a token, 1.5 ns a query-key pair,
21 µs a decode, 59 ns a cached token.
"""

from __future__ import annotations

from sim.hardware import Gpu

MEMORY_EFFICIENCY = 0.90
"""Share of the data sheet's bandwidth that weight reads reach: 0.93 on the RTX 4090, 0.83 on the PRO 6000 (tables)."""

KV_EFFICIENCY = 0.85
"""The same for scattered KV blocks: 0.83 (H100 fit: 59 ns for 163,840 bytes), 0.88 on the RTX 4090 (tables)."""

_GEMM_EFFICIENCY = {"rtx-4090": 0.97, "rtx-pro-6000": 0.78, "h100-80gb": 0.65, "h200": 0.65, "l4": 0.5}
_GEMM_EFFICIENCY_ELSEWHERE = 0.75

ATTENTION_EFFICIENCY = 0.8
"""Attention over chunks, as a share of what matrix products reach: 0.85 (H100 fit), 0.64 to 0.87 on the RTX 4090."""

EXPERT_EFFICIENCY = 0.7
"""Products of routed experts, as a share of what dense ones reach (PRO 6000 tables: 267 of 392 TFLOPS)."""

UNPACKED_EXPERT_EFFICIENCY = 0.3
"""The same where the experts' weights are unpacked from 4 bits on the way: prefill of gpt-oss-120b on an H200 takes
about 329 ms for 7,200 tokens."""

LAYER_NS = 45_000
"""Norms, rotary embedding, activation, the attention kernel's fixed part and the gaps between kernels, a layer, under
CUDA graphs: what measured decode steps leave beside the weights (RTX 4090 tables: 20 µs of kernels)."""

MOE_LAYER_NS = 30_000
"""In addition in a layer of experts: router, sorting and scattering of tokens. An assumption; suits gpt-oss-120b."""

SEQUENCE_LAYER_NS = 350
"""What one more sequence costs the attention kernel of a layer, its context aside (RTX 4090 tables, 128 decodes)."""

SAMPLER_PASSES = 2
"""How often the sampler reads a row of float32 logits (RTX 4090 tables: 0.85 µs for a row of 128,256)."""

EAGER_LAYER_NS = 250_000
"""Launching a layer's kernels one by one from Python. An assumption; decoding on a fast GPU is bound by it."""

HOST_STEP_NS = 1_200_000
HOST_REQUEST_NS = 10_000
"""Scheduling, input preparation and output of a step, and of each request in it. An assumption: about what an A10G
server with synchronous scheduling leaves of its 14.7 ms a decode step of a 3 B model."""

ALL_REDUCE_NS = {"nvlink": 10_000, "pcie": 30_000}
"""Latency of one small all-reduce. An assumption."""

LINK_EFFICIENCY = 0.75
"""Share of a link's data-sheet bandwidth that large messages reach. An assumption."""

GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""CUDA-graph sizes that vLLM captures by default: a step of up to 512 tokens is padded to the next."""

TILES = (16, 32, 64, 128)
"""Rows of a matrix kernel: the smallest tile that holds the tokens, multiples of 128 beyond (tables: a jump of 45 %
from 256 to 320 tokens)."""


def gemm_efficiency(gpu: Gpu) -> float:
    """Returns the share of the dense tensor peak that large matrix products reach.

    RTX 4090 (whose clock exceeds the data sheet's) and RTX PRO 6000: tables; H100: fit; H200: as the H100; L4: an
    assumption (72 W hold its clock down); all others: an assumption, between these.
    """
    return _GEMM_EFFICIENCY.get(gpu.name, _GEMM_EFFICIENCY_ELSEWHERE)
