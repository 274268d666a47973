"""What the simulator needs to know of a model: its shape, as in Hugging Face's config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.models.params import LayerParams, layer_params, total_params
from sim.models.quantization import Quantization

LayerKind = Literal["full", "sliding", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """The layers that keep a state of fixed size instead of keys and values (gated delta net, as in Qwen3-Next).

    Attributes:
        num_key_heads: heads of keys and queries.
        num_value_heads: heads of values; the state has one matrix for each.
        key_head_dim: size of a key.
        value_head_dim: size of a value.
        conv_kernel: width of the causal convolution before it; it keeps the last `conv_kernel - 1` inputs.
        state_bytes_per_element: bytes of an element of the state matrix (2 for bf16, 4 for float32).
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4
    state_bytes_per_element: int = 2

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim

    def state_bytes(self, tensor_parallel_size: int, dtype_bytes: int) -> int:
        """Returns the bytes one sequence keeps in one layer on one GPU (vLLM: `MambaSpec.page_size_bytes`)."""
        conv = self.conv_dim // tensor_parallel_size * (self.conv_kernel - 1) * dtype_bytes
        heads = self.num_value_heads // tensor_parallel_size
        return conv + heads * self.key_head_dim * self.value_head_dim * self.state_bytes_per_element


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model's shape. Field names are those of config.json where it has one.

    Attributes:
        name: the name it was found by.
        max_position_embeddings: the longest context vLLM derives from the config.
        default_max_model_len: vLLM's default of max_model_len where that is shorter (LongRoPE).
        dtype: type of the unquantized weights.
        attention_bias: biases on q, k and v. output_bias: bias on the output projection.
        qk_norm: RMS norms on queries and keys.
        norms_per_layer: norms as wide as the hidden state in each layer.
        layer_types: kind of each layer; empty: all full attention.
        sliding_window: tokens a sliding layer attends to.
        full_num_kv_heads, full_head_dim: of the full-attention layers, where they differ from the sliding ones.
        full_keys_are_values: full-attention layers have no value projection (their cache holds both all the same).
        q_lora_rank ... v_head_dim: multi-head latent attention; kv_lora_rank 0: none.
        num_experts ... num_moe_layers: mixture of experts in the last num_moe_layers layers; 0: dense.
        shared_expert_intermediate_size: width of all always-active experts together.
        expert_bias: experts have biases (gpt-oss).
        attention_output_gate: the query projection also produces a gate of the same size (Qwen3-Next).
        state_space: shape of the `state` layers.
        extra_params: parameters beside the language model (vision towers).
        min_batched_tokens: vLLM raises its default token budget to this, one multimodal item (Gemma 4).
        quantization: the checkpoint's weight format; None: all in `dtype`.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    default_max_model_len: int | None = None
    tie_word_embeddings: bool = False
    dtype: str = "bfloat16"
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    layer_types: tuple[LayerKind, ...] = ()
    sliding_window: int | None = None
    full_num_kv_heads: int | None = None
    full_head_dim: int | None = None
    full_keys_are_values: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    num_moe_layers: int = 0
    shared_expert_intermediate_size: int = 0
    shared_expert_gate: bool = False
    expert_bias: bool = False
    attention_output_gate: bool = False
    state_space: StateSpace | None = None
    extra_params: int = 0
    min_batched_tokens: int = 0
    quantization: Quantization | None = None

    @property
    def is_mla(self) -> bool:
        """Whether the cache holds one latent vector a token instead of keys and values (DeepSeek)."""
        return self.kv_lora_rank > 0

    @property
    def is_moe(self) -> bool:
        """Whether some layers have routed experts."""
        return self.num_experts > 0 and self.num_moe_layers > 0

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, first to last."""
        every_layer: tuple[LayerKind, ...] = ("full",)
        return self.layer_types or every_layer * self.num_layers

    @property
    def num_full_layers(self) -> int:
        """Layers whose every token attends to all before it."""
        return self.kinds.count("full")

    @property
    def num_sliding_layers(self) -> int:
        """Layers with a sliding window."""
        return self.kinds.count("sliding")

    @property
    def num_state_layers(self) -> int:
        """Layers with a state of fixed size."""
        return self.kinds.count("state")

    @property
    def num_params(self) -> int:
        """All parameters, those of a vision tower included."""
        return total_params(self, active=False)

    @property
    def num_active_params(self) -> int:
        """Parameters that one token uses: of the routed experts only its own. Embeddings count, a vision tower not."""
        return total_params(self, active=True)

    def layer(self, index: int) -> LayerParams:
        """Returns the parameters of one layer, by the way they are spread over GPUs."""
        return layer_params(self, index)

    def kv_heads(self, kind: LayerKind) -> int:
        """Returns the key-value heads of a layer of this kind."""
        return self.full_num_kv_heads or self.num_kv_heads if kind == "full" else self.num_kv_heads

    def head_size(self, kind: LayerKind) -> int:
        """Returns the size of a head in a layer of this kind."""
        return self.full_head_dim or self.head_dim if kind == "full" else self.head_dim
