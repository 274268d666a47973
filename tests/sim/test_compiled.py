"""`make compiled` builds, and gives the same run as pure Python."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import sim.core.scheduler

REPOSITORY = Path(__file__).parents[2]
CODE = """
import sim.core.scheduler
from calibrate.recorded_prompts import LeadingHits
from sim.core.config import CacheConfig, SchedulerConfig
from sim.deployment import plan
from sim.engine.step_time import Batch
from sim.records import RequestLog
from sim.scenario.load import load_scenario, override
from sim.simulate import simulate
run = simulate(load_scenario("chat.yaml"), seed=0)
print([(r.sent_ns, r.first_token_ns, r.finish_ns, r.num_cached_tokens, r.num_preemptions) for r in run.requests])
print(run.steps.end_ns.tolist(), run.steps.num_free_blocks.tolist(), run.itl.count.tolist())
packed = RequestLog(list(run.requests) * 50)
print(packed[0] == run.requests[0], sum(record.num_output_tokens for record in packed))
print(plan(load_scenario("chat.yaml")).step_time_model().split(Batch.of([100, 200], [(64, 0)])))
ranks = {"server.model": "Qwen/Qwen3-30B-A3B", "server.gpu": "h100", "server.data_parallel_size": 2,
         "server.flags.enable_expert_parallel": True, "run.duration": "10s"}
print(simulate(override(load_scenario("chat.yaml"), ranks), seed=0).steps.end_ns.tolist())
stages = {"server.pipeline_parallel_size": 2, "run.duration": "10s"}
print(simulate(override(load_scenario("chat.yaml"), stages), seed=0).steps.end_ns.tolist())
print(type(LeadingHits({}).manager(CacheConfig(9), SchedulerConfig(4, 16, 64))).__name__)
print(sim.core.scheduler.__file__.endswith(".py"))
"""
SCENARIO = """
name: chat
server: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: l4, flags: {max_model_len: 2048, num_gpu_blocks_override: 300}}
workload:
  kind: users
  users: 30
  classes:
    - name: chat
      first_prompt_tokens: 200
      next_prompt_tokens: 40
      output_tokens: {exponential: {mean: 80}}
      turns: 5
      think_time: {exponential: {mean: 2s}}
run: {duration: 60s}
"""


@pytest.mark.slow
@pytest.mark.skipif(not str(sim.core.scheduler.__file__).endswith(".py"), reason="this core is compiled already")
@pytest.mark.skipif(
    importlib.util.find_spec("mypyc") is None or not shutil.which(str(sysconfig.get_config_var("CC")).split()[0]),
    reason="needs mypyc and a C compiler",
)
def test_the_compiled_core_gives_the_same_run(tmp_path: Path) -> None:
    for name in ("sim", "calibrate"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "chat.yaml").write_text(SCENARIO)
    pure = simulated(tmp_path)
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(
        build, cwd=tmp_path, env={**os.environ, "HEADCOUNT_COMPILE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = simulated(tmp_path)
    assert (pure[-1], compiled[-1]) == ("True", "False")
    assert compiled[:-1] == pure[:-1]


def simulated(folder: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()
