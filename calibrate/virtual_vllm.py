"""The real vLLM engine core over a device that takes its time and computes nothing.

The engine's scheduler, KV cache manager, block pool and batch queue are vLLM's own. A scheduler subclass tells a
`Watcher` what is decided and changes nothing; the executor lets the watcher's clock run until a step is over.
vllm is imported inside the functions: it takes about 12 seconds.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Json = dict[str, Any]

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
_V2_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_TINY_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "bfloat16",
}
_ENGINE_ARGS = {  # the case's name for each flag -> vLLM's
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "block_size": "block_size",
    "num_gpu_blocks": "num_gpu_blocks_override",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "policy": "scheduling_policy",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive": "long_prefill_token_threshold_adaptive",
    "max_num_active_seqs": "max_num_active_seqs",
    "watermark": "watermark",
    "scheduler_reserve_full_isl": "scheduler_reserve_full_isl",
}


@dataclass(frozen=True, slots=True)
class VirtualStep:
    """A step the device was given: its requests, the tokens it will yield for each, and when it is over."""

    request_ids: list[str]
    sampled: list[list[int]]
    end_us: int


class Watcher(Protocol):
    """Who is told what the engine does, and says how long a step takes."""

    next_step: VirtualStep | None
    """The step scheduled last: what the device gets next."""

    def on_schedule(self, scheduler: Any, output: Any) -> None:
        """Looks at what `schedule()` is about to return, and sets `next_step`."""

    def on_preempt(self, request_id: str) -> None:
        """Looks at a request that is being preempted."""

    def on_result(self, step: VirtualStep) -> None:
        """Waits until a step is over."""


def build_engine(flags: Json, watcher: Watcher) -> Any:
    """Returns vLLM's `EngineCore` over a virtual device.

    Args:
        flags: the engine flags of a case.
        watcher: is told everything.

    Raises:
        ValueError: a flag is not known here, or vLLM refuses it.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore

    flags = dict(flags)
    layers = flags.pop("kv_layers", [["full", 1]])
    is_async = flags.pop("async_scheduling", False)
    num_stages = flags.pop("pipeline_parallel_size", 1)
    os.environ.pop(_V2_RUNNER, None)  # vLLM refuses it on a CPU when it checks the configuration
    if unknown := sorted(flags.keys() - _ENGINE_ARGS.keys()):
        raise ValueError(f"unknown engine flags {unknown}; known: {sorted(_ENGINE_ARGS)}")
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(_TINY_MODEL), encoding="utf-8")
        config = EngineArgs(
            model=model,
            skip_tokenizer_init=True,
            load_format="dummy",
            enforce_eager=True,
            **{_ENGINE_ARGS[key]: value for key, value in flags.items()},
        ).create_engine_config()
    # vLLM's CPU platform switches asynchronous scheduling off; scheduling itself does not depend on the platform.
    config.scheduler_config.async_scheduling = is_async
    config.parallel_config.pipeline_parallel_size = num_stages
    os.environ[_V2_RUNNER] = "1"  # as on GPUs; the scheduler asks for it alone, how to fill asynchronous pipelines
    config.scheduler_config.scheduler_cls = _watched_scheduler(is_async, watcher)
    return EngineCore(config, _virtual_executor(layers, watcher), log_stats=False)


def _watched_scheduler(is_async: bool, watcher: Watcher) -> type:
    """Returns the scheduler class that vLLM would use, telling the watcher what it decides."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    class WatchedScheduler(AsyncScheduler if is_async else Scheduler):  # type: ignore[misc]
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            output = super().schedule(*args, **kwargs)
            watcher.on_schedule(self, output)
            return output

        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
            watcher.on_preempt(request.request_id)
            super()._preempt_request(request, *args, **kwargs)

    return WatchedScheduler


def _virtual_executor(layers: list[list[Any]], watcher: Watcher) -> type:
    """Returns the class of the virtual device, with the attention layers that the case names."""
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.kv_cache_interface import KVCacheLayout

    class VirtualExecutor(Executor):  # type: ignore[misc]
        supports_pp = True
        supported_tasks = ("generate",)

        def _init_executor(self) -> None:
            self.latest: _StepResult | None = None

        def get_kv_cache_specs(self) -> list[Json]:
            return [_kv_cache_specs(layers, self.cache_config.block_size)]

        def determine_available_memory(self) -> list[int]:
            return [1 << 42]

        def collective_rpc(self, method: Any, *_args: Any, **_kwargs: Any) -> list[Any]:
            is_layouts = method == "get_supported_kv_cache_layouts"
            return [[layout.name for layout in KVCacheLayout] if is_layouts else None]

        def execute_model(self, _scheduler_output: Any, non_block: bool = False) -> Any:
            assert watcher.next_step is not None
            self.latest = _StepResult(watcher, watcher.next_step)
            return self.latest if non_block else self.latest.result()

        def sample_tokens(self, _grammar_output: Any, non_block: bool = False) -> Any:
            assert self.latest is not None
            return self.latest if non_block else self.latest.result()

        def compile_or_warm_up_model(self) -> None:
            pass

        def check_health(self) -> None:
            pass

    return VirtualExecutor


class _StepResult:
    """A future of a step's output: whoever asks for it waits until the step is over."""

    def __init__(self, watcher: Watcher, step: VirtualStep) -> None:
        self.watcher = watcher
        self.step = step

    def result(self, _timeout: float | None = None) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        self.watcher.on_result(self.step)
        return ModelRunnerOutput(
            req_ids=self.step.request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(self.step.request_ids)},
            sampled_token_ids=self.step.sampled,
        )


def _kv_cache_specs(layers: list[list[Any]], block_size: int) -> Json:
    """Returns what vLLM asks of a model: the KV cache of each attention layer."""
    import torch  # type: ignore[import-not-found]
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shape: Json = {"block_size": block_size, "num_kv_heads": 1, "head_size": 32, "dtype": torch.bfloat16}
    specs: Json = {}
    for kind, count, *window in layers:
        for _ in range(count):
            spec = (
                FullAttentionSpec(**shape) if kind == "full" else SlidingWindowSpec(**shape, sliding_window=window[0])
            )
            specs[f"layers.{len(specs)}.attn"] = spec
    return specs
