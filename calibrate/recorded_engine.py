"""The engine that a step record was made in, as the simulation configures one."""

from __future__ import annotations

from calibrate.step_record import StepRecord
from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from sim.errors import UserError

SCHEDULER_KEYS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "policy",
    "async_scheduling",
    "pipeline_parallel_size",
    "max_num_active_seqs",
    "watermark",
    "scheduler_reserve_full_isl",
)
CACHE_KEYS = ("num_gpu_blocks", "block_size", "enable_prefix_caching")
"""What step records and recorded schedules say of an engine, by the names that its configurations have here."""


def engine_configs(record: StepRecord) -> tuple[SchedulerConfig, CacheConfig]:
    """Returns the recorded engine's scheduler and cache; where max_model_len was not recorded, it never binds.

    Raises:
        UserError: the engine is of a kind that is not simulated, or the record does not say enough of it.
    """
    server = record.server
    longest = max((r.num_prompt_tokens + r.max_tokens for r in record.added), default=1)
    flags = {"max_model_len": longest + 1, **{key: server[key] for key in SCHEDULER_KEYS if key in server}}
    try:
        groups = tuple(kv_spec(kind, window) for kind, window, *_ in server.get("kv_groups", [["full", None]]))
        cache_flags = {key: server[key] for key in CACHE_KEYS}
        return SchedulerConfig(**flags), CacheConfig(**cache_flags, kv_cache_groups=groups)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{record.path}:1:1: this engine cannot be simulated: {reason}") from None


def kv_spec(kind: str, window: int | None = None) -> KVCacheSpec:
    """Returns the KV cache of layers of a kind.

    Raises:
        ValueError: of a kind that is not simulated.
    """
    match kind, window:
        case "full", None:
            return FullAttentionSpec()
        case "sliding", int():
            return SlidingWindowSpec(window)
        case _:
            raise ValueError(
                f"KV caches of kind {kind!r}, window {window}, are not simulated; kinds: full, sliding with a window"
            )
