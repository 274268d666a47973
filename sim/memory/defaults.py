"""The defaults of `vllm serve`, by release and GPU (vLLM: `EngineArgs.create_engine_config`)."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from sim.errors import UserError
from sim.hardware import MOST_GIB, Gpu
from sim.memory import version as since
from sim.memory.flags import EngineFlags, ResolvedFlags
from sim.memory.version import Version, parse_version
from sim.models import ModelSpec

_T = TypeVar("_T")
_HALF = {"half": "float16", "float": "float32"}
_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
_MOST_BLOCKS = 1_000_000_000  # a thousand times those of the largest GPU and the smallest block

KV_CACHE_DTYPES = ("auto", "float16", "bfloat16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")


def resolve_flags(
    flags: EngineFlags, version: str, gpu: Gpu, model: ModelSpec, *, num_gpus: int = 1, num_stages: int = 1
) -> ResolvedFlags:
    """Returns every flag with its value: the one given, or the default of this release on this GPU.

    Args:
        flags: what was given.
        version: the vLLM release.
        gpu: the GPU each rank runs on.
        model: gives max_model_len and dtype where they are not given.
        num_gpus: tensor-parallel times pipeline-parallel size; the CPU's defaults grow with it.
        num_stages: pipeline-parallel size.

    Raises:
        UserError: values that vLLM rejects, in its words.
    """
    release = parse_version(version)
    given = {f.name for f in fields(EngineFlags) if getattr(flags, f.name) is not None}
    auto_fit = flags.max_model_len == -1
    # -1 stands for the longest that fits: until the pool is known, for the model's own.
    length = None if auto_fit else flags.max_model_len
    if length is None:
        length = model.default_max_model_len or model.max_position_embeddings
    v1 = release >= since.V1_ENGINE
    chunked = _or(flags.enable_chunked_prefill, v1 or length > 32768)  # V0 turned it on above 32k
    seqs, tokens = _batch_limits(flags, _device_defaults(release, gpu, num_gpus), length, chunked, model)
    resolved = ResolvedFlags(
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=_or(flags.gpu_memory_utilization, 0.92 if release >= since.UTILIZATION_092 else 0.9),
        block_size=_given_block_size(flags, release, gpu) or _block_size(release, gpu, model),
        enable_prefix_caching=_or(flags.enable_prefix_caching, v1),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=flags.long_prefill_token_threshold or 0,
        long_prefill_token_threshold_adaptive=bool(flags.long_prefill_token_threshold_adaptive),
        scheduling_policy=flags.scheduling_policy or "fcfs",
        # platforms/cpu.py turns it off on a CPU, asked for or not.
        async_scheduling=not gpu.is_cpu and _async_scheduling(flags, release, num_stages),
        num_gpu_blocks_override=flags.num_gpu_blocks_override,
        kv_cache_dtype=flags.kv_cache_dtype or "auto",
        kv_cache_memory_bytes=flags.kv_cache_memory_bytes,
        dtype=_dtype(flags, gpu, model),
        quantization=flags.quantization,
        enforce_eager=bool(flags.enforce_eager),
        max_num_active_seqs=flags.max_num_active_seqs,
        watermark=flags.watermark or 0.0,
        scheduler_reserve_full_isl=_or(flags.scheduler_reserve_full_isl, release >= since.RESERVE_FULL_ISL),
        max_num_queued_reqs=flags.max_num_queued_reqs,
        max_num_queued_tokens=flags.max_num_queued_tokens,
        enable_expert_parallel=bool(flags.enable_expert_parallel),
        defaulted=frozenset(f.name for f in fields(EngineFlags)) - given,
        auto_fit_max_model_len=auto_fit,
    )
    _check(resolved, gpu, model)
    return resolved


def _async_scheduling(flags: EngineFlags, release: Version, num_stages: int) -> bool:
    """Returns whether steps are scheduled ahead; a pipeline could not have that before 0.16, asked for or not."""
    if num_stages == 1 or release >= since.ASYNC_IN_PIPELINES:
        return _or(flags.async_scheduling, release >= since.ASYNC_SCHEDULING)
    if flags.async_scheduling:
        raise UserError(
            f"async_scheduling: before 0.16 vLLM does not start with it and pipeline_parallel_size {num_stages}; leave "
            "it out, or take a later version"
        )
    return False


def _batch_limits(
    flags: EngineFlags, defaults: tuple[int, int], length: int, chunked: bool, model: ModelSpec
) -> tuple[int, int]:
    """Returns (max_num_seqs, max_num_batched_tokens): what was given, or the device's defaults bent to each other.

    Only a default budget grows, to the context when prompts are not chunked and to one multimodal item; only a default
    number of sequences is cut to the budget (`_set_default_max_num_seqs_and_batched_tokens_args`).
    """
    seqs = flags.max_num_seqs or defaults[0]
    tokens = flags.max_num_batched_tokens
    if tokens is None:
        tokens = max(defaults[1], model.min_batched_tokens, 0 if chunked else length)
        tokens = min(seqs * length, tokens)
    return (min(seqs, tokens) if flags.max_num_seqs is None else seqs), tokens


def _device_defaults(release: Version, gpu: Gpu, num_gpus: int) -> tuple[int, int]:
    """Returns (max_num_seqs, max_num_batched_tokens) of `vllm serve` on this device (`get_batch_defaults`)."""
    if gpu.is_cpu:
        return 128 * num_gpus, 2048 * num_gpus
    if release < since.V1_ENGINE:
        return 256, 2048 if release >= (0, 6, 4) else 512
    # NVML does not tell the memory of integrated GPUs, and vLLM then takes the smallest defaults.
    memory_gib = 0.0 if gpu.unified_memory else gpu.memory_gib
    a100 = gpu.name.startswith("a100")
    if release >= since.LARGE_BY_MEMORY:
        large = memory_gib >= 70 and not (a100 and release >= since.A100_EXCLUDED)
    else:
        large = gpu.name.startswith(("h100", "h200"))
    if not large:
        return 256, 2048
    if memory_gib >= 160 and release >= since.HUGE_GPU_DEFAULTS:
        return 1024, 16384
    return 1024 if release >= since.LARGE_GPU_SEQS else 256, 8192


def _given_block_size(flags: EngineFlags, release: Version, gpu: Gpu) -> int | None:
    """Returns the block size that was asked for; the attention kernels of NVIDIA GPUs take multiples of 16.

    (`AttentionBackend.supports_block_size`. The kernels of V0, of AMD GPUs and of CPUs take others.)
    """
    size = flags.block_size
    if size and size % 16 and release >= since.V1_ENGINE and not gpu.is_cpu and not gpu.name.startswith("mi"):
        raise UserError(
            f"block_size: {size} tokens fit no attention kernel of an NVIDIA GPU, and vLLM finds no valid attention "
            "backend; give a multiple of 16"
        )
    return size


def _block_size(release: Version, gpu: Gpu, model: ModelSpec) -> int:
    """Returns the block size that the attention backend of this GPU asks for.

    Latent attention: FlashMLA on Hopper takes 64, CUTLASS on data-centre Blackwell 128 (64 with the newer FlashInfer
    kernels), Triton elsewhere any multiple of 16.
    """
    if gpu.is_cpu:
        return 16 if model.is_mla or release < since.V1_ENGINE else 128
    if model.is_mla and gpu.compute_capability[0] == 9:
        return 64
    if model.is_mla and gpu.compute_capability[0] == 10:
        return 128 if release < (0, 14, 0) else 64
    return 16


def _dtype(flags: EngineFlags, gpu: Gpu, model: ModelSpec) -> str:
    dtype = flags.dtype or "auto"
    if dtype not in _DTYPES:
        raise UserError(f"dtype: must be one of {', '.join(_DTYPES)}, not {dtype!r}")
    dtype = _HALF.get(dtype, dtype)
    no_bf16 = not gpu.is_cpu and gpu.compute_capability < (8, 0)
    if dtype == "auto":
        # A float32 checkpoint is loaded in half precision (`_resolve_auto_dtype`).
        return "float16" if no_bf16 or model.dtype == "float16" else "bfloat16"
    if dtype == "bfloat16" and no_bf16:
        major, minor = gpu.compute_capability
        raise UserError(
            "dtype: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
            f"Your {gpu.name} GPU has compute capability {major}.{minor}. You can use float16 instead by explicitly "
            "setting the `dtype` flag in CLI, for example: --dtype=half."
        )
    return dtype


def _check(flags: ResolvedFlags, gpu: Gpu, model: ModelSpec) -> None:
    """Raises UserError for the combinations that vLLM's config classes reject before anything is loaded."""
    if (flags.num_gpu_blocks_override or 0) > _MOST_BLOCKS:
        raise UserError(f"num_gpu_blocks_override: must be at most {_MOST_BLOCKS}; got {flags.num_gpu_blocks_override}")
    if (flags.kv_cache_memory_bytes or 0) > MOST_GIB * 2**30:
        raise UserError(f"kv_cache_memory_bytes: must be at most {MOST_GIB} GiB; got {flags.kv_cache_memory_bytes}")
    if flags.kv_cache_dtype not in KV_CACHE_DTYPES:
        raise UserError(f"kv_cache_dtype: must be one of {', '.join(KV_CACHE_DTYPES)}, not {flags.kv_cache_dtype!r}")
    if not 0 < flags.gpu_memory_utilization <= 1:
        raise UserError(
            f"gpu_memory_utilization: must be above 0 and at most 1, not {flags.gpu_memory_utilization} "
            f"(the share of the {gpu.memory_gib} GiB that vLLM may use)"
        )
    if flags.max_model_len < 1 or flags.max_num_seqs < 1 or flags.max_num_batched_tokens < 1 or flags.block_size < 1:
        raise UserError("max_model_len, max_num_seqs, max_num_batched_tokens and block_size must be at least 1")
    if flags.max_model_len > model.max_position_embeddings:
        raise UserError(
            f"max_model_len: User-specified max_model_len ({flags.max_model_len}) is greater than the derived "
            f"max_model_len (max_position_embeddings={model.max_position_embeddings} in model's config.json); "
            f"--max-model-len may be at most {model.max_position_embeddings}"
        )
    if flags.max_num_batched_tokens < flags.max_model_len and not flags.enable_chunked_prefill:
        raise UserError(
            f"max_num_batched_tokens ({flags.max_num_batched_tokens}) is smaller than max_model_len "
            f"({flags.max_model_len}) and chunked prefill is off. Please increase max_num_batched_tokens or decrease "
            "max_model_len."
        )
    if flags.max_num_batched_tokens < flags.max_num_seqs:
        raise UserError(
            f"max_num_batched_tokens ({flags.max_num_batched_tokens}) must be greater than or equal to max_num_seqs "
            f"({flags.max_num_seqs})."
        )
    if flags.max_num_active_seqs is not None and flags.max_num_active_seqs > flags.max_num_seqs:
        raise UserError(
            f"max_num_active_seqs ({flags.max_num_active_seqs}) cannot be greater than max_num_seqs "
            f"({flags.max_num_seqs})."
        )
    if flags.long_prefill_token_threshold > flags.max_model_len:
        raise UserError(
            f"long_prefill_token_threshold ({flags.long_prefill_token_threshold}) cannot be greater than the "
            f"max_model_len ({flags.max_model_len})."
        )


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value
