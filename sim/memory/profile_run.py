"""Estimates of what vLLM measures in its profile run: the activation peak, non-torch memory and CUDA graphs.

The run executes the model on `max_num_batched_tokens` dummy tokens and then samples for `max_num_seqs` sequences; the
peak is the higher of the two. The coefficients below reproduce within 6 % the peaks in the start-up logs of 20 models
under 0.11 to 0.19 on H100 (among them the accuracy report of llm-d-planner, v0.19.0: Llama-3.1-8B 1.89 GiB, Qwen3-8B
2.21, gemma-2-27b 3.66, phi-4 1.52, CodeLlama-7b 0.77, Qwen3-30B-A3B 2.68, Mixtral with TP 2 1.21; and, sorting, 4.76
for Llama-3.1-8B, 5.64 for Qwen3-32B, 1.42 for Qwen2.5-7B on a card with 256 sequences). The sampler, not the context,
is what makes the peak of the large defaults large.
"""

from __future__ import annotations

from sim.hardware import Gpu
from sim.memory import version as since
from sim.memory.flags import ResolvedFlags
from sim.memory.version import Version
from sim.models import ModelSpec

GIB = 2**30
MIB = 2**20

_HIDDEN_COPIES = 4.25  # hidden states alive at the widest point: residual, normed input, attention output, …
_SAMPLER_OVERHEAD_BYTES = 10 * MIB

# Bytes per (sequence, vocabulary entry) that sampling holds at once, by what the release samples with.
_SORTING = 38.3  # logits in 16 and 32 bits, sorted copy, 64-bit indices, probabilities, cumulative sums, noise
_FLASHINFER_OR_SORTING = 24.0  # 0.8 to 0.10: 10 with FlashInfer installed, 38 without; the middle
_TRITON = 14.7
_LOGITS_ALONE = 6.0  # logits in 16 and 32 bits


def activation_bytes(
    model: ModelSpec, flags: ResolvedFlags, release: Version, tensor_parallel_size: int, *, samples: bool = True
) -> float:
    """Returns the estimated activation peak on one GPU.

    Args:
        model: widths and vocabulary.
        flags: token budget, sequences, type.
        release: the vLLM release; it decides how sampling works.
        tensor_parallel_size: splits the MLP's width; hidden states and logits are whole on every GPU.
        samples: whether this GPU's pipeline stage is the last, which samples.
    """
    tokens = flags.max_num_batched_tokens
    hidden = tokens * model.hidden_size * flags.dtype_bytes
    experts = _expert_buffers(model, tokens, flags.dtype_bytes, tensor_parallel_size)
    mlp = 0.0
    if not model.is_moe or model.num_moe_layers < model.num_layers:
        # Gate and up projections side by side, and their product.
        mlp = 3 * tokens * model.intermediate_size / tensor_parallel_size * flags.dtype_bytes
    peak = max(mlp, experts) + _HIDDEN_COPIES * hidden
    if not samples:
        return peak
    logits = flags.max_num_seqs * model.vocab_size * _sampler_bytes(release, flags)
    kept = experts if release >= since.TRITON_SAMPLER and not _packed_experts(model) else 0.0
    return max(peak, logits + hidden + kept + _SAMPLER_OVERHEAD_BYTES)


def non_torch_bytes(gpu: Gpu, release: Version, tensor_parallel_size: int) -> float:
    """Returns the estimated memory outside PyTorch: CUDA modules, NCCL, buffers of collectives.

    0.13 GiB on one GPU, 0.25 since 0.18 or with several; since 0.18 about 2.1 GiB with tensor parallelism on Hopper and
    Blackwell with NVLink, where vLLM registers symmetric memory (logs: 2.06 to 2.20 at TP 2 and 4).
    """
    if gpu.is_cpu:
        return 0.0
    newer = release >= since.SHARED_BUFFERS
    if tensor_parallel_size > 1:
        symmetric = newer and gpu.nvlink_bytes_per_s is not None and gpu.compute_capability >= (9, 0)
        return (2.1 if symmetric else 0.25) * GIB
    return (0.25 if newer else 0.13) * GIB


def cuda_graph_bytes(model: ModelSpec, flags: ResolvedFlags, gpu: Gpu) -> float:
    """Returns vLLM's own estimate of the memory of its CUDA graphs, as far as it can be foretold.

    0.35 GiB for the pools, and 0.15 MiB for every graph and layer: it captures one graph for each batch size twice,
    piecewise and full (logs: 0.84 GiB for Llama-3.1-8B with 51 + 51 graphs, 0.5 to 0.8 with 51 + 35, 0.45 with 1 + 1).
    """
    if flags.enforce_eager or gpu.is_cpu:
        return 0.0
    sizes = capture_sizes(flags, gpu)
    num_graphs = len(sizes) + sum(size <= flags.max_num_seqs for size in sizes)
    return 0.35 * GIB + 0.15 * MIB * num_graphs * model.num_layers


def capture_sizes(flags: ResolvedFlags, gpu: Gpu) -> tuple[int, ...]:
    """Returns the batch sizes for which graphs are captured: 1, 2, 4, then steps of 8 to 256, then steps of 16.

    Up to twice max_num_seqs, at most 512 (1024 on data-centre Blackwell) and max_num_batched_tokens.
    """
    most = 1024 if gpu.compute_capability[0] == 10 else 512
    most = min(most, 2 * flags.max_num_seqs, flags.max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]
    return tuple(size for size in sizes if size <= most)


def _sampler_bytes(release: Version, flags: ResolvedFlags) -> float:
    if release >= since.V2_RUNNER:
        return _LOGITS_ALONE
    if release >= since.TRITON_SAMPLER:
        return _TRITON
    if release >= since.PYTORCH_SAMPLER:
        return _SORTING
    if release >= since.V1_ENGINE:
        return _FLASHINFER_OR_SORTING
    # V0 sampled in its profile run, unless the dummy prompts were chunks, which yield no token.
    return 0.0 if flags.enable_chunked_prefill else _SORTING


def _expert_buffers(model: ModelSpec, tokens: int, dtype_bytes: int, tensor_parallel_size: int) -> float:
    """Returns the two buffers of the fused experts: each token once per expert chosen, before and after each product.

    vLLM's modular kernels keep them from layer to layer, so they are still there when the sampler runs.
    """
    if not model.is_moe:
        return 0.0
    width = model.moe_intermediate_size / tensor_parallel_size
    rows = tokens * model.num_experts_per_tok
    return rows * (max(2 * width, model.hidden_size) + max(width, model.hidden_size)) * dtype_bytes


def _packed_experts(model: ModelSpec) -> bool:
    """Whether the experts are MXFP4, whose kernels keep no such buffers (gpt-oss: 2.87 GiB, the sampler alone)."""
    return model.quantization is not None and model.quantization.experts_only
