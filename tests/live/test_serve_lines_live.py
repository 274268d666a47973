"""The `vllm serve` lines that a search prints are taken by vLLM's own parser."""

import json
import os
import shlex
import subprocess

import pytest

from sim.search import serve_command
from tests.sim.search.made import scenario

PYTHON = os.environ.get("HEADCOUNT_VLLM_PYTHON")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not PYTHON, reason="HEADCOUNT_VLLM_PYTHON does not name the python of an environment with vllm"),
]

PARSE = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
AsyncEngineArgs.add_cli_args(parser)
known = vars(parser.parse_args(["--model", *sys.argv[1:]]))
print(json.dumps({key: known[key] for key in known if isinstance(known[key], (int, float, str, bool))}))
"""


def test_vllm_reads_every_flag_as_it_was_meant() -> None:
    flags = {
        "max_model_len": 4096,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.85,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 512,
        "kv_cache_dtype": "fp8",
        "enforce_eager": True,
        "async_scheduling": False,
        "scheduling_policy": "priority",
        "num_gpu_blocks_override": 1000,
        "max_num_active_seqs": 32,
        "watermark": 0.01,
        "scheduler_reserve_full_isl": False,
        "enable_expert_parallel": True,
    }
    given = {f"server__{key}": str(value).lower() for key, value in flags.items()}
    served = scenario(server__tensor_parallel_size=2, **given)
    words = shlex.split(serve_command(served))
    assert words[:2] == ["vllm", "serve"]
    done = subprocess.run([str(PYTHON), "-c", PARSE, *words[2:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    read = json.loads(done.stdout.splitlines()[-1])
    assert read["model"] == served.server.model
    assert read["tensor_parallel_size"] == 2
    assert {key: read[key] for key in flags} == flags
