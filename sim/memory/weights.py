"""The bytes that a model's weights take on one GPU."""

from __future__ import annotations

from sim.errors import UserError
from sim.memory.flags import ResolvedFlags, ServerSpec
from sim.memory.kv_layout import pipeline_stages
from sim.models import ModelSpec, Quantization
from sim.models.params import embedding_params
from sim.models.quantization import quantization_from_flag

_VOCAB_PADDING = 64  # vLLM pads the vocabulary to a multiple of this (`DEFAULT_VOCAB_PADDING_SIZE`)
_MXFP4_PADDING = 256  # and the width of MXFP4 experts to a multiple of this, for the Marlin and Triton kernels


def check_parallel(model: ModelSpec, server: ServerSpec) -> None:
    """Raises UserError when the model cannot be spread over that many GPUs, in vLLM's words."""
    tp, pp = server.tensor_parallel_size, server.pipeline_parallel_size
    if min(tp, pp, server.data_parallel_size) < 1:
        raise UserError("tensor_parallel_size, pipeline_parallel_size and data_parallel_size must be at least 1")
    if model.num_attention_heads % tp:
        raise UserError(
            f"tensor_parallel_size: Total number of attention heads ({model.num_attention_heads}) must be divisible "
            f"by tensor parallel size ({tp})."
        )
    if _padded_vocab(model) % tp:
        raise UserError(
            f"tensor_parallel_size: the padded vocabulary ({_padded_vocab(model)}) must be divisible by tensor "
            f"parallel size ({tp})."
        )
    for heads in () if model.is_mla else {model.kv_heads("full"), model.kv_heads("sliding")}:
        if heads % tp and tp % heads:
            raise UserError(
                f"tensor_parallel_size: {max(heads, tp)} is not divisible by {min(heads, tp)}: {heads} key-value heads "
                f"cannot be spread over {tp} GPUs."
            )
    if pp > model.num_layers:
        raise UserError(f"pipeline_parallel_size: {pp} stages for {model.num_layers} layers; at most one layer each")


def weights_bytes(model: ModelSpec, flags: ResolvedFlags, server: ServerSpec) -> tuple[float, ...]:
    """Returns the bytes of the weights on one GPU of each pipeline stage.

    Linear layers in the checkpoint's format (or that of the quantization flag); embeddings, output head, norms and
    routers in the model's type. The embedding is on the first stage, the head on the last; a tied one on both. Every
    stage holds a table of rotary positions of `max_position_embeddings` rows, as vLLM's loader counts it.
    """
    if flags.quantization is None:
        quantization = model.quantization
    else:
        quantization = quantization_from_flag(flags.quantization, model.quantization)
    tp = server.tensor_parallel_size
    embedding = embedding_params(model) // model.vocab_size * _padded_vocab(model) / tp * flags.dtype_bytes
    rotary_dim = model.qk_rope_head_dim or model.head_dim
    rotary = model.max_position_embeddings * rotary_dim * flags.dtype_bytes
    stages = pipeline_stages(model.num_layers, server.pipeline_parallel_size)
    sizes: list[float] = []
    for stage in stages:
        size = rotary + sum(_layer_bytes(model, layer, flags, server, quantization) for layer in stage)
        if stage is stages[0]:
            size += embedding + model.extra_params / tp * flags.dtype_bytes
        if stage is stages[-1] and (len(stages) > 1 or not model.tie_word_embeddings):
            size += embedding
        sizes.append(size)
    return tuple(sizes)


def _layer_bytes(
    model: ModelSpec, index: int, flags: ResolvedFlags, server: ServerSpec, quantization: Quantization | None
) -> float:
    tp = server.tensor_parallel_size
    layer = model.layer(index)
    plain = float(flags.dtype_bytes)
    linear = expert = plain
    if quantization is not None:
        expert = quantization.bytes_per_param
        linear = plain if quantization.experts_only else expert
    kv_copies = max(1.0, tp / model.kv_heads(model.kinds[index]))  # heads are replicated when there are too few
    dense = layer.heads / tp + layer.kv / tp * kv_copies + layer.replicated + layer.mlp / tp
    experts = layer.experts / tp
    if layer.experts and flags.enable_expert_parallel:
        experts = layer.experts / (tp * server.data_parallel_size)
    elif layer.experts and quantization is not None and quantization.method == "mxfp4":
        width = -(-model.moe_intermediate_size // tp)
        experts *= -(-width // _MXFP4_PADDING) * _MXFP4_PADDING / width
    return dense * linear + experts * expert + (layer.router + layer.small) * plain


def _padded_vocab(model: ModelSpec) -> int:
    return -(-model.vocab_size // _VOCAB_PADDING) * _VOCAB_PADDING
