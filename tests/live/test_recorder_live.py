"""The recorder in front of the real scheduler, synchronous and asynchronous: what it writes is replayed exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.schedule_cases import KINDS, generate_case
from calibrate.step_reader import read_steps
from calibrate.step_replay import compare_steps

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
CASES = [(kind, seed, is_async) for kind in KINDS for seed in (1,) for is_async in (False, True)]


def _name(kind: str, seed: int, is_async: bool) -> str:
    return f"{kind}-{seed}-{'async' if is_async else 'sync'}"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = os.environ.get("HEADCOUNT_VLLM_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import vllm"], capture_output=True, check=False).returncode:
        pytest.skip("needs vllm: set HEADCOUNT_VLLM_PYTHON to the Python of its environment")
    folder = tmp_path_factory.mktemp("virtual")
    cases = []
    for kind, seed, is_async in CASES:
        cases.append(folder / f"{_name(kind, seed, is_async)}.json")
        cases[-1].write_text(json.dumps(generate_case(kind, seed, async_scheduling=is_async)), encoding="utf-8")
    out = folder / "records"
    out.mkdir()
    script = Path(__file__).with_name("record_virtual_steps.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([python, str(script), *map(str, cases), str(out)], env=environment, check=True)
    return out


@pytest.mark.parametrize(("kind", "seed", "is_async"), CASES)
def test_a_recorded_engine_is_replayed_step_for_step(records: Path, kind: str, seed: int, is_async: bool) -> None:
    record = read_steps(records / f"{_name(kind, seed, is_async)}.jsonl")
    assert record.server["async_scheduling"] is is_async
    comparison = compare_steps(record)
    assert comparison.difference is None
    assert comparison.num_equal_steps == comparison.num_steps > 0
