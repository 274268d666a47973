"""What decides the memory of a server: vLLM's flags, measured values, the number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sim.errors import UserError
from sim.hardware import MOST_GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """The flags of `vllm serve` by their own names; None is "not given": the default of the version and the GPU.

    `max_model_len` may be -1: the longest that fits.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None
    long_prefill_token_threshold_adaptive: bool | None = None
    scheduling_policy: Literal["fcfs", "priority"] | None = None
    async_scheduling: bool | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_dtype: str | None = None
    kv_cache_memory_bytes: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    enforce_eager: bool | None = None
    max_num_active_seqs: int | None = None
    watermark: float | None = None
    scheduler_reserve_full_isl: bool | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    enable_expert_parallel: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverrides:
    """Measured values to use in place of estimates, per GPU, in GiB; None: estimate.

    Attributes:
        weights_gib: the model's weights ("Model loading took").
        activation_gib: peak of the activations. vLLM since 0.21 logs it with the graph estimate added: then set
            graphs_gib to 0.
        non_torch_gib: memory outside PyTorch.
        graphs_gib: the CUDA-graph estimate.
        kv_cache_gib: the KV pool ("Available KV cache memory"): nothing else is needed then.
        num_state_blocks: state blocks of a hybrid model.
        kv_bytes_per_token: bytes one token takes on one GPU, in place of what the model's shape gives.
        free_gib: free memory at start; None: enough.
    """

    weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_gib: float | None = None
    kv_cache_gib: float | None = None
    num_state_blocks: int | None = None
    kv_bytes_per_token: float | None = None
    free_gib: float | None = None

    def __post_init__(self) -> None:
        """Refuses what no GPU has, before it overflows.

        Raises:
            UserError: a value is too large, or a token takes less than a byte.
        """
        for name in ("weights_gib", "activation_gib", "non_torch_gib", "graphs_gib", "kv_cache_gib", "free_gib"):
            value = getattr(self, name)
            if value is not None and value > MOST_GIB:
                raise UserError(f"{name}: must be at most {MOST_GIB}; got {value:g}")
        if self.kv_bytes_per_token is not None and self.kv_bytes_per_token < 1:
            raise UserError(f"kv_bytes_per_token: must be at least 1; got {self.kv_bytes_per_token:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One server: version, flags, measured memory, and how many GPUs share the model.

    Attributes:
        version: the vLLM release.
        tensor_parallel_size: GPUs that share each layer.
        pipeline_parallel_size: stages of consecutive layers.
        data_parallel_size: replicas; they share experts only under enable_expert_parallel.
        flags: flags of `vllm serve`.
        memory: measured values.
        estimate_cudagraphs: VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS; None: the version's default.
    """

    version: str = "0.32"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    flags: EngineFlags = field(default_factory=EngineFlags)
    memory: MemoryOverrides = field(default_factory=MemoryOverrides)
    estimate_cudagraphs: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFlags:
    """Every flag with the value it has in this server, and which of them are defaults."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    block_size: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    long_prefill_token_threshold_adaptive: bool
    scheduling_policy: Literal["fcfs", "priority"]
    async_scheduling: bool
    num_gpu_blocks_override: int | None
    kv_cache_dtype: str
    kv_cache_memory_bytes: int | None
    dtype: str
    quantization: str | None
    enforce_eager: bool
    max_num_active_seqs: int | None
    watermark: float
    scheduler_reserve_full_isl: bool
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    enable_expert_parallel: bool
    defaulted: frozenset[str]
    auto_fit_max_model_len: bool = False

    @property
    def dtype_bytes(self) -> int:
        """Bytes of an element of weights and activations."""
        return 4 if self.dtype == "float32" else 2

    @property
    def kv_dtype_bytes(self) -> int:
        """Bytes of an element of the KV cache."""
        if self.kv_cache_dtype == "auto":
            return self.dtype_bytes
        return {"float32": 4, "float16": 2, "bfloat16": 2}.get(self.kv_cache_dtype, 1)
