"""Fresh random cases on the real vLLM, compared with ours: `HEADCOUNT_VLLM_PYTHON=... pytest -m live tests/live`."""

import json
import os
import random
import subprocess

import pytest

from calibrate.schedule_cases import random_cases
from calibrate.schedule_trace import check_trace
from tests.factories import REPOSITORY

PYTHON = os.environ.get("HEADCOUNT_VLLM_PYTHON")
NUM_CASES = int(os.environ.get("HEADCOUNT_LIVE_CASES", "40"))

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not PYTHON, reason="HEADCOUNT_VLLM_PYTHON does not name the python of an environment with vllm"),
]


def test_fresh_random_cases_are_equal(tmp_path):
    seed = int(os.environ.get("HEADCOUNT_LIVE_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"seed {seed}: repeat with HEADCOUNT_LIVE_SEED={seed}")
    files = []
    for case in random_cases(seed, NUM_CASES):
        files.append(tmp_path / f"{case['name']}.json")
        files[-1].write_text(json.dumps(case))
    traces = tmp_path / "traces"
    command = [PYTHON, "-m", "calibrate.record_schedule", *map(str, files), "--out", str(traces), "--gzip"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-2_000:]}"
    comparisons = [check_trace(path) for path in sorted(traces.iterdir())]
    assert len(comparisons) == NUM_CASES
    differences = {c.path.name: c.difference for c in comparisons if c.difference is not None}
    assert not differences, f"seed {seed}"
    print(f"{NUM_CASES} cases, {sum(c.num_steps for c in comparisons)} steps: equal")
