"""Asks the real vLLM 0.32 how it would cut and count the KV caches described on stdin; run by the live test.

Reads a JSON list of cases and writes a JSON list of what `get_kv_cache_configs` and `get_kv_cache_capacity` answer.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.kv_cache_layout import KVCacheLayout


def spec(case: dict[str, Any], kind: str) -> Any:
    shape = {"block_size": case["block_size"], "head_size": case["head_dim"], "dtype": torch.bfloat16}
    if kind == "full":
        return FullAttentionSpec(num_kv_heads=case["full_kv_heads"], **shape)
    return SlidingWindowSpec(num_kv_heads=case["kv_heads"], sliding_window=case["window"], **shape)


def config(case: dict[str, Any]) -> Any:
    layout = KVCacheLayout.LBNHC
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=case["length"], original_max_model_len=case["length"]),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            get_resolved_kv_cache_layout=lambda: layout,
            prefix_cache_retention_interval=0,
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=1),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        max_in_flight_tokens=case["in_flight"],
        num_prefill_lookahead_tokens=0,
        num_speculative_tokens=0,
        speculative_config=None,
    )


def main() -> None:
    answers: list[dict[str, Any]] = []
    for case in json.load(sys.stdin):
        stages = [{str(layer): spec(case, case["kinds"][layer]) for layer in stage} for stage in case["stages"]]
        vllm_config = config(case)
        try:
            configs = kv_cache_utils.get_kv_cache_configs(vllm_config, stages, [case["num_bytes"]] * len(stages))
        except ValueError as error:
            answers.append({"error": str(error)})
            continue
        whole = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
        tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(vllm_config, whole)
        answers.append({"num_blocks": whole.num_blocks, "tokens": tokens, "concurrency": concurrency})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
