"""What is printed can be run: the server by vLLM, the trial by headcount."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

from sim.scenario.overrides import parse_override
from sim.scenario.server import Flags
from sim.search import run_command, serve_command
from tests.sim.search.made import scenario


def test_only_flags_that_are_set_are_named_and_switches_by_their_own_form() -> None:
    served = scenario(
        server__tensor_parallel_size=2,
        server__max_num_seqs=64,
        server__enable_prefix_caching="false",
        server__enforce_eager="true",
        server__kv_cache_dtype="fp8",
        server__gpu_memory_utilization=0.85,
        server__max_num_batched_tokens=512,
    )
    assert serve_command(served) == (
        "vllm serve Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 2 --max-model-len 256 --max-num-seqs 64 "
        "--max-num-batched-tokens 512 --gpu-memory-utilization 0.85 --no-enable-prefix-caching --kv-cache-dtype fp8 "
        "--enforce-eager"
    )


def test_every_flag_has_a_form() -> None:
    flags = Flags.model_validate(
        {"max_model_len": 1, "watermark": 0.1, "async_scheduling": False, "scheduling_policy": "priority"}
    )
    served = scenario()
    changed = served.model_copy(update={"server": served.server.model_copy(update={"flags": flags})})
    assert serve_command(changed).endswith(
        "--max-model-len 1 --scheduling-policy priority --no-async-scheduling --watermark 0.1"
    )


def test_a_model_of_one_s_own_is_named_by_its_folder() -> None:
    served = scenario()
    changed = served.model_copy(
        update={"server": served.server.model_copy(update={"model": "models/mine/config.json"})}
    )
    assert serve_command(changed).startswith("vllm serve models/mine --max-model-len")


def test_the_run_line_survives_a_shell() -> None:
    parameters = {"server.max_num_seqs": 4, "server.enable_prefix_caching": None, "server.gpu": "rtx-4090"}
    options = ["--set", "objectives=['ttft.p95 <= 1s']", "--seeds", "2"]
    words = shlex.split(run_command(Path("my scenarios/it's.yaml"), options, parameters))
    assert words[:7] == ["headcount", "run", "my scenarios/it's.yaml", *options]
    given = [word for before, word in pairwise(words[6:]) if before == "--set"]
    assert dict(parse_override(text) for text in given) == parameters
