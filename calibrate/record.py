"""Scheduler subclasses that record every step of a real vLLM engine and change nothing:

    HEADCOUNT_STEP_RECORD=steps.jsonl PYTHONPATH=/path/to/headcount \\
      vllm serve MODEL --scheduler-cls calibrate.record.recording_scheduler

`recording_scheduler` makes the right one of `RecordingAsyncScheduler`, for engines that schedule asynchronously (vLLM's
default on GPUs), and `RecordingScheduler`, for the others (CPU, `--no-async-scheduling`); with the wrong one the engine
would not be the one it is without recording, so both refuse. Needs vllm and the standard library only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.version import __version__ as vllm_version

from calibrate.step_writer import StepWriter

PATH_VARIABLE = "HEADCOUNT_STEP_RECORD"
_SCHEDULER_FLAGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "policy",
    "max_num_active_seqs",
    "watermark",
    "scheduler_reserve_full_isl",
)


class _Recording:
    """The hooks, in front of a scheduler class of vLLM's."""

    recorder: StepWriter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _check_class(self)
        try:
            server, problem = describe(self), None
        except Exception as error:  # another release may lack what is described; it serves all the same
            server, problem = {}, f"this vLLM is not known: {type(error).__name__}: {error}"
        self.recorder = StepWriter(_record_path(self), server)
        if problem is not None:
            self.recorder.give_up(problem)

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().add_request(request, *args, **kwargs)  # type: ignore[misc]
        self.recorder.added(request)
        return result

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self.recorder.scheduled(self, output, began)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        result = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        self.recorder.completed(self, scheduler_output, began)
        return result

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.recorder.preempted(request)
        return super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.recorder.ended(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        result = super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]
        if result:
            self.recorder.reset()
        return result

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        self.recorder.close()
        return super().shutdown(*args, **kwargs)  # type: ignore[misc]


class RecordingScheduler(_Recording, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler, recorded."""


class RecordingAsyncScheduler(_Recording, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, recorded."""


def recording_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> _Recording:
    """Returns the recorded scheduler for this engine: vLLM calls it as it would call the class."""
    is_async = vllm_config.scheduler_config.async_scheduling
    return (RecordingAsyncScheduler if is_async else RecordingScheduler)(vllm_config, *args, **kwargs)


def describe(scheduler: Any) -> dict[str, Any]:
    """Returns what the first line of a record says of the engine: versions, flags, sizes, under vLLM's names."""
    config = scheduler.vllm_config
    flags = {name: getattr(config.scheduler_config, name, None) for name in _SCHEDULER_FLAGS}
    parallel, cache = config.parallel_config, config.cache_config
    return {
        "vllm": vllm_version,
        "model": config.model_config.model,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "max_model_len": scheduler.max_model_len,
        "enforce_eager": bool(config.model_config.enforce_eager),
        "kv_cache_dtype": str(cache.cache_dtype),
        "num_gpu_blocks": cache.num_gpu_blocks,
        "block_size": scheduler.block_size,
        "hash_block_size": getattr(scheduler, "hash_block_size", scheduler.block_size),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "kv_groups": [_kv_group(group) for group in scheduler.kv_cache_config.kv_cache_groups],
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        **{name: value for name, value in flags.items() if value is not None},
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "data_parallel_rank": parallel.data_parallel_rank,
        "graph_sizes": list(getattr(config.compilation_config, "cudagraph_capture_sizes", None) or ()),
    }


def _kv_group(group: Any) -> list[Any]:
    """Returns [kind, window, layers] of a KV cache group."""
    spec = group.kv_cache_spec
    window = getattr(spec, "sliding_window", None)
    name = type(spec).__name__
    if window is not None and "SlidingWindow" in name:
        kind = "sliding"
    elif "Chunked" in name or "Attention" not in name:
        kind = name
    else:
        kind, window = "full", None
    return [kind, window, len(group.layer_names)]


def _check_class(scheduler: Any) -> None:
    """Refuses a class that would change how the engine schedules."""
    is_async = bool(scheduler.vllm_config.scheduler_config.async_scheduling)
    if is_async != isinstance(scheduler, AsyncScheduler):
        right = "RecordingAsyncScheduler" if is_async else "RecordingScheduler"
        kind = "asynchronously" if is_async else "synchronously"
        raise ValueError(f"this engine schedules {kind}: use --scheduler-cls calibrate.record.{right}")


def _record_path(scheduler: Any) -> Path:
    """Returns the file to write; each data-parallel engine has its own."""
    path = Path(os.environ.get(PATH_VARIABLE, "steps.jsonl"))
    rank = scheduler.vllm_config.parallel_config.data_parallel_rank
    return path.with_stem(f"{path.stem}-dp{rank}") if rank else path
