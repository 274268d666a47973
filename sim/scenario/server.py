"""The server of a scenario: engine, model, GPUs, flags."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator

from sim.hardware import MOST_GIB
from sim.scenario.bounds import MOST_GPUS, MOST_REPLICAS
from sim.scenario.fleet import Autoscaling, Failure, ModelSwitch, Router, SlowGpu
from sim.scenario.ollama import VERSION_PATTERN, Ollama, StaticBatching, quoted_version
from sim.scenario.part import Part
from sim.scenario.units import Bytes


class Flags(Part):
    """Flags of `vllm serve`, by their own names; what is not set takes the default of the version and the GPU."""

    max_model_len: int | None = Field(default=None, gt=0, description="The longest prompt plus answer, in tokens.")
    max_num_seqs: int | None = Field(default=None, gt=0, description="Most requests that run in one step.")
    max_num_batched_tokens: int | None = Field(default=None, gt=0, description="Token budget of one step.")
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="Share of the GPU's memory that vLLM may use."
    )
    block_size: int | None = Field(default=None, gt=0, description="Tokens in one KV-cache block.")
    enable_prefix_caching: bool | None = Field(default=None, description="Reuse KV blocks of equal prefixes.")
    enable_chunked_prefill: bool | None = Field(default=None, description="Cut prompts to what the budget leaves.")
    long_prefill_token_threshold: int | None = Field(
        default=None, ge=0, description="Most tokens of one prompt in one step; 0: no limit."
    )
    long_prefill_token_threshold_adaptive: bool | None = Field(
        default=None, description="Share the token budget evenly among the requests when that is more."
    )
    scheduling_policy: Literal["fcfs", "priority"] | None = Field(
        default=None, description="Order of the waiting queue: by arrival, or by priority (lower first) then arrival."
    )
    async_scheduling: bool | None = Field(default=None, description="Schedule a step while the last one executes.")
    num_gpu_blocks_override: int | None = Field(default=None, gt=0, description="KV blocks, instead of the profiled.")
    kv_cache_dtype: (
        Literal["auto", "float16", "bfloat16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"] | None
    ) = Field(default=None, description="Type of the KV cache; auto: the model's.")
    kv_cache_memory_bytes: Bytes | None = Field(default=None, description="Size of the KV cache on each GPU.")
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None = Field(
        default=None, description="Type of weights and activations; auto: the model's."
    )
    quantization: str | None = Field(default=None, description="Weight quantization (fp8, awq, gptq, mxfp4, …).")
    enforce_eager: bool | None = Field(default=None, description="Run without CUDA graphs.")
    max_num_active_seqs: int | None = Field(
        default=None, gt=0, description="Cap on running requests, below max_num_seqs."
    )
    watermark: float | None = Field(
        default=None, ge=0, lt=1, description="Share of the KV blocks kept free when a request is admitted."
    )
    scheduler_reserve_full_isl: bool | None = Field(
        default=None, description="Admit a request only when its whole prompt fits in the free blocks."
    )
    max_num_queued_reqs: int | None = Field(
        default=None, gt=0, description="Requests in the server before it answers 503."
    )
    max_num_queued_tokens: int | None = Field(
        default=None, gt=0, description="Prompt tokens still in prefill before the server answers 503."
    )
    enable_expert_parallel: bool | None = Field(default=None, description="Spread the experts over the GPUs.")


class MemoryOverrides(Part):
    """Measured memory, from the log of a real server, used in place of the estimates. Per GPU, in GiB."""

    weights_gib: float | None = Field(default=None, ge=0, le=MOST_GIB, description="Weights ('model weights take').")
    activation_gib: float | None = Field(default=None, ge=0, le=MOST_GIB, description="Peak of the activations.")
    non_torch_gib: float | None = Field(default=None, ge=0, le=MOST_GIB, description="Memory outside PyTorch.")
    graphs_gib: float | None = Field(default=None, ge=0, le=MOST_GIB, description="CUDA graphs.")
    kv_cache_gib: float | None = Field(
        default=None, ge=0, le=MOST_GIB, description="KV cache ('Available KV cache memory')."
    )
    free_gib: float | None = Field(
        default=None, ge=0, le=MOST_GIB, description="Free memory before the start. Default: enough."
    )
    num_state_blocks: int | None = Field(
        default=None, gt=0, description="State blocks of a hybrid (Mamba) model: one a running request."
    )


class Server(Part):
    """One inference server, or several equal ones behind a router (`replicas`)."""

    kind: Literal["vllm", "ollama", "static"] = Field(
        default="vllm",
        description="The engine. ollama reads the section of that name; static reads its own, and takes memory and "
        "step times as vLLM's.",
    )
    version: str = Field(
        default="0.32",
        pattern=VERSION_PATTERN,
        description="The release of vLLM whose rules and defaults apply, quoted.",
    )
    model: str = Field(min_length=1, description="A model of the built-in table, or a path to its config.json.")
    gpu: str = Field(min_length=1, description="A GPU of the built-in table: rtx-4090, h100, …")
    tensor_parallel_size: int = Field(default=1, gt=0, le=MOST_GPUS, description="GPUs that share each layer.")
    pipeline_parallel_size: int = Field(default=1, gt=0, le=MOST_GPUS, description="Stages of consecutive layers.")
    data_parallel_size: int = Field(
        default=1, gt=0, le=MOST_REPLICAS, description="Engines of one server, which it balances itself."
    )
    replicas: int = Field(default=1, gt=0, le=MOST_REPLICAS, description="Equal servers behind a router.")
    router: Router = Field(default="round_robin", description="How the router chooses a replica.")
    router_max_retries: int = Field(
        default=0, ge=0, description="How often the router sends a request that failed before its first token again."
    )
    autoscaling: Autoscaling | None = Field(default=None, description="Replicas by load; `replicas` is the start.")
    failures: Annotated[tuple[Failure, ...], Strict(False)] = Field(
        default=(), description="Replicas that fail, and when."
    )
    model_switch: ModelSwitch | None = Field(default=None, description="A rolling update of the replicas.")
    interconnect: Literal["nvlink", "pcie"] | None = Field(
        default=None, description="What joins the GPUs; default: NVLink where the GPU has it."
    )
    clock_factor: float = Field(
        default=1.0,
        ge=0.01,
        le=1,
        description="Share of the GPUs' clock that a power limit leaves; memory is not slower.",
    )
    slow_gpus: Annotated[tuple[SlowGpu, ...], Strict(False)] = Field(
        default=(), description="GPUs that are slower than the others of their group for a time."
    )
    profile: str = Field(
        default="analytical",
        min_length=1,
        description="What a step costs: a fitted profile's name or path, or analytical (uncalibrated).",
    )
    flags: Flags = Field(default_factory=Flags, description="Flags of `vllm serve`.")
    memory: MemoryOverrides = Field(default_factory=MemoryOverrides, description="Measured memory, where known.")
    ollama: Ollama = Field(default_factory=Ollama, description="Ollama's settings.")
    static: StaticBatching = Field(default_factory=StaticBatching, description="How static batches are made.")

    @field_validator("version", mode="before")
    @classmethod
    def _quoted(cls, version: Any) -> Any:
        return quoted_version(version)

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas together, as many as there are at the start."""
        return self.gpus_per_replica * self.replicas

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def is_fleet(self) -> bool:
        """Whether there is more to simulate than one engine that is always there."""
        several = self.replicas > 1 or self.data_parallel_size > 1
        return bool(several or self.autoscaling is not None or self.failures or self.model_switch is not None)

    def files(self) -> tuple[str, ...]:
        """Returns the names that may be files: of models and profiles of the chosen kind."""
        ollama = self.ollama
        if self.kind != "ollama":
            return (self.model, self.profile)
        named = [ollama.model or self.model, ollama.profile, *(item for each in ollama.models for item in each.files())]
        return tuple(name for name in named if name is not None)
