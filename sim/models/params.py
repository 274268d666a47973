"""Counts a model's parameters from its shape, layer by layer, by the way they are spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerParams:
    """The parameters of one transformer layer.

    Attributes:
        heads: linear, split by attention heads over the tensor-parallel GPUs (q, output; state-space projections).
        kv: keys and values: linear, split by key-value heads, replicated when there are more GPUs than heads.
        replicated: linear, whole on every GPU (the down projections of latent attention).
        mlp: linear, split by width: a dense MLP and shared experts.
        experts: linear, the routed experts.
        router: unquantized, whole on every GPU.
        small: norms, biases, sinks: unquantized; a negligible part is split, so they count as whole.
    """

    heads: int = 0
    kv: int = 0
    replicated: int = 0
    mlp: int = 0
    experts: int = 0
    router: int = 0
    small: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.heads + self.kv + self.replicated + self.mlp + self.experts + self.router + self.small


def total_params(model: ModelSpec, *, active: bool) -> int:
    """Returns the parameters of the whole model, or of what one token uses.

    Of the routed experts a token uses `num_experts_per_tok / num_experts`.
    """
    layers = [model.layer(index) for index in range(model.num_layers)]
    total = model.hidden_size + embedding_params(model) * (1 if model.tie_word_embeddings else 2)
    total += sum(layer.total for layer in layers)
    if not active:
        return total + model.extra_params
    if model.is_moe:
        experts = sum(layer.experts for layer in layers)
        total -= experts - experts * model.num_experts_per_tok // model.num_experts
    return total


def embedding_params(model: ModelSpec) -> int:
    """Returns the size of the token embedding; the output head is as large, or the same when tied."""
    return model.vocab_size * model.hidden_size


def layer_params(model: ModelSpec, index: int) -> LayerParams:
    """Returns the parameters of layer `index` (from 0)."""
    kind = model.kinds[index]
    if kind == "state":
        attention = _state_layer(model)
    elif model.is_mla:
        attention = _latent_attention(model)
    else:
        attention = _attention(model, index)
    mlp = _moe(model) if index >= model.num_layers - model.num_moe_layers else _dense(model)
    return LayerParams(
        heads=attention.heads,
        kv=attention.kv,
        replicated=attention.replicated,
        mlp=mlp.mlp,
        experts=mlp.experts,
        router=mlp.router,
        small=attention.small + mlp.small + model.norms_per_layer * model.hidden_size,
    )


def _attention(model: ModelSpec, index: int) -> LayerParams:
    kind = model.kinds[index]
    head_dim = model.head_size(kind)
    q_size = model.num_attention_heads * head_dim
    kv_size = model.kv_heads(kind) * head_dim
    num_kv = 1 if kind == "full" and model.full_keys_are_values else 2
    small = (q_size + num_kv * kv_size if model.attention_bias else 0) + (model.hidden_size if model.output_bias else 0)
    return LayerParams(
        heads=model.hidden_size * q_size * (3 if model.attention_output_gate else 2),
        kv=model.hidden_size * kv_size * num_kv,
        small=small + (2 * head_dim if model.qk_norm else 0),
    )


def _latent_attention(model: ModelSpec) -> LayerParams:
    """DeepSeek-V2's attention: down to a latent vector (on every GPU), then up to each head's keys and values."""
    heads, hidden, rank = model.num_attention_heads, model.hidden_size, model.kv_lora_rank
    qk_head_dim = model.qk_nope_head_dim + model.qk_rope_head_dim
    q_input = model.q_lora_rank or hidden
    return LayerParams(
        heads=q_input * heads * qk_head_dim
        + rank * heads * (model.qk_nope_head_dim + model.v_head_dim)
        + heads * model.v_head_dim * hidden,
        replicated=hidden * model.q_lora_rank + hidden * (rank + model.qk_rope_head_dim),
        small=model.q_lora_rank + rank,
    )


def _state_layer(model: ModelSpec) -> LayerParams:
    """Gated delta net: one projection to queries, keys, values and output gate, one to the decay and update rates."""
    state = model.state_space
    assert state is not None, f"{model.name} has state layers without a state_space"
    values = state.num_value_heads * state.value_head_dim
    projections = state.conv_dim + values + 2 * state.num_value_heads
    small = state.conv_dim * state.conv_kernel + 2 * state.num_value_heads + state.value_head_dim
    return LayerParams(heads=model.hidden_size * (projections + values), small=small)


def _dense(model: ModelSpec) -> LayerParams:
    return LayerParams(mlp=3 * model.hidden_size * model.intermediate_size)


def _moe(model: ModelSpec) -> LayerParams:
    """Gate, up and down projections of every expert; gpt-oss has biases on experts and router, and attention sinks."""
    hidden, width = model.hidden_size, model.moe_intermediate_size
    expert = 3 * hidden * width + (2 * width + hidden if model.expert_bias else 0)
    router = model.num_experts * (hidden + (1 if model.expert_bias else 0))
    # Beside the experts Gemma 4 keeps its dense MLP; everywhere else intermediate_size is that of the other layers.
    shared = 3 * hidden * model.shared_expert_intermediate_size
    return LayerParams(
        mlp=shared,
        experts=model.num_experts * expert,
        router=router + (hidden if model.shared_expert_gate else 0),
        small=model.num_attention_heads if model.expert_bias else 0,
    )
