"""Random models get the pool from us that the real vLLM 0.32 gives them, to the block and to the last digit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim.memory import MemoryBudget
from sim.memory.kv_layout import pipeline_stages
from sim.models import ModelSpec
from tests.sim.memory.made import budget

PYTHON = os.environ.get("HEADCOUNT_VLLM_PYTHON") or sys.executable
SCRIPT = Path(__file__).parent / "vllm_pools.py"
PATTERNS = (("full",), ("sliding",), ("sliding", "full"), ("sliding",) * 5 + ("full",), ("full", "sliding", "sliding"))


def random_case(rng: random.Random) -> tuple[dict[str, Any], MemoryBudget]:
    layers, pattern = rng.randint(2, 40), rng.choice(PATTERNS)
    kinds = tuple(pattern[i % len(pattern)] for i in range(layers))
    kv_heads, head_dim = rng.choice([1, 2, 4, 8]), rng.choice([64, 128, 256])
    full_kv_heads = kv_heads // 2 if kv_heads > 1 and rng.random() < 0.25 else kv_heads
    length, tokens, asynchronous = rng.choice([500, 2048, 32_768]), rng.choice([256, 2048, 8192]), rng.random() < 0.5
    stages = rng.choice([1, 1, 2])
    case: dict[str, Any] = {
        "kinds": kinds,
        "kv_heads": kv_heads,
        "full_kv_heads": full_kv_heads,
        "head_dim": head_dim,
        "window": rng.choice([64, 1000, 4096]),
        "length": length,
        "in_flight": (stages + 1 if asynchronous else stages) * tokens,
        "num_bytes": int(10 ** rng.uniform(6.5, 9.6)),
        "block_size": rng.choice([16, 32, 64]),
        "stages": [list(stage) for stage in pipeline_stages(layers, stages)],
    }
    model = ModelSpec(
        name="random",
        num_layers=layers,
        hidden_size=512,
        num_attention_heads=8,
        num_kv_heads=kv_heads,
        full_num_kv_heads=full_kv_heads,
        head_dim=head_dim,
        intermediate_size=512,
        vocab_size=1024,
        max_position_embeddings=65_536,
        sliding_window=case["window"],
        layer_types=kinds,  # type: ignore[arg-type]
    )
    return case, budget(
        model,
        "h100",
        "0.32",
        pp=stages,
        max_model_len=length,
        max_num_batched_tokens=tokens,
        max_num_seqs=64,
        async_scheduling=asynchronous,
        block_size=case["block_size"],
        kv_cache_memory_bytes=case["num_bytes"],
    )


@pytest.mark.live
def test_pools_are_those_of_the_real_vllm() -> None:
    if subprocess.run([PYTHON, "-c", "import vllm"], capture_output=True, check=False).returncode:
        pytest.skip("vllm is not installed here (HEADCOUNT_VLLM_PYTHON names an interpreter that has it)")
    rng = random.Random(32)
    cases, budgets = zip(*(random_case(rng) for _ in range(300)), strict=True)
    quiet = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
    run = subprocess.run(
        [PYTHON, str(SCRIPT)], input=json.dumps(cases), capture_output=True, text=True, check=True, env=quiet
    )
    refused = 0
    for case, ours, theirs in zip(cases, budgets, json.loads(run.stdout.splitlines()[-1]), strict=True):
        if "error" in theirs:
            refused += 1
            assert ours.refusal is not None, case
            if len(case["stages"]) == 1:  # of several stages vLLM names the first, we the tightest
                assert ours.refusal.split("Try increasing")[0] == theirs["error"].split("Try increasing")[0]
            continue
        assert ours.refusal is None, case
        assert ours.num_gpu_blocks == theirs["num_blocks"]
        assert ours.kv_tokens == theirs["tokens"]
        assert ours.max_concurrency == theirs["concurrency"]
    assert 0 < refused < len(cases)
