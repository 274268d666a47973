"""Cases 4 and 11: requests that no amount of waiting helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.records import Outcome
from tests.cases.build import diagnosed, measured, one_class, scenario, write_profile


@pytest.fixture(autouse=True)
def _steps(tmp_path: Path) -> None:
    write_profile(tmp_path, floor_us=20_000, per_token_us=10)


def gemma(folder: Path, version: str, prompt: int) -> Any:
    """Returns one long prompt between two short ones, on the server of case 4."""
    classes = [
        {"name": "short", "share": 1, "prompt_tokens": 500, "output_tokens": 20},
        {"name": "long", "share": 1, "prompt_tokens": prompt, "output_tokens": 20},
    ]
    workload = {"kind": "closed_loop", "num_requests": 12, "max_concurrency": 1, "classes": classes}
    return scenario(
        folder,
        workload,
        server={"version": version, "model": "gemma-4-31B-it"},
        objectives=["errors <= 0%"],
        max_model_len=262_144,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        num_gpu_blocks_override=14_024,
    )


def test_case_4_a_prompt_beyond_the_pool_is_flagged_at_once(tmp_path: Path) -> None:
    """gemma-4-31B on 0.19.1rc1, pool of 37,392 tokens beside "1.53x @262,144": a request hangs for ever."""
    record, metrics = measured(gemma(tmp_path, "0.19.1rc1", 60_000))
    long = [request for request in record.requests if request.num_prompt_tokens == 60_000]
    assert 0 < len(long) < 12
    assert {request.outcome for request in long} == {Outcome.NEVER_FITS}
    assert all(request.finish_ns == request.arrival_ns for request in long)  # said at once, not waited for
    short = [request for request in record.requests if request.num_prompt_tokens == 500]
    assert {request.outcome for request in short} == {Outcome.FINISHED}  # nothing is stuck behind it here
    assert metrics.total.errors == {"never_fits": len(long)}
    [warning] = [text for text in record.warnings if "never be served" in text]
    # 14,023 blocks over five sliding groups (16 tokens a block) and the full one (32), the whole prompt in each.
    assert warning.startswith(
        f"{len(long)} of 12 requests can never be served: the KV cache holds one of at most 40784"
    )


def test_case_4_the_diagnosis_is_the_kv_cache(tmp_path: Path) -> None:
    """Requests longer than the pool break the errors objective, and the report says why."""
    _, diagnosis = diagnosed(gemma(tmp_path, "0.19.1rc1", 60_000))
    assert diagnosis is not None
    assert diagnosis.resource == "kv_blocks"
    assert "longer than the whole KV cache and can never be served" in diagnosis.evidence


@pytest.mark.parametrize(("version", "prompt"), [("0.19.1rc1", 30_000), ("0.21.0", 60_000)])
def test_case_4_what_fits_is_served(tmp_path: Path, version: str, prompt: int) -> None:
    """30,000 tokens fit; and from 0.21 on a sliding group is counted by its window, so 60,000 fit as well."""
    record, metrics = measured(gemma(tmp_path, version, prompt))
    assert metrics.total.num_finished == 12
    assert not [text for text in record.warnings if "never be served" in text]


def agent(folder: Path, version: str) -> Any:
    classes = [
        {"name": "agent", "prompt_tokens": 184_001, "output_tokens": 16_000},
        {"name": "short", "prompt_tokens": 500, "output_tokens": 20},
    ]
    return scenario(
        folder,
        {"kind": "closed_loop", "num_requests": 3, "max_concurrency": 1, "classes": classes},
        server={"version": version, "model": "Qwen3-30B-A3B-Instruct-2507"},
        objectives=["errors <= 0%"],
        max_model_len=200_000,
    )


def test_case_11_prompt_and_max_tokens_beyond_the_context_are_refused_before_queueing(tmp_path: Path) -> None:
    """184,001 + 16,000 = 200,001 > max_model_len 200,000: HTTP 400 although there is memory."""
    case = agent(tmp_path, "0.20.0")
    record, metrics = measured(case)
    agents = [request for request in record.requests if request.class_id == 0]
    assert 0 < len(agents) < 3
    for request in agents:
        assert request.outcome is Outcome.REFUSED
        assert request.finish_ns == request.arrival_ns
        assert (request.scheduled_ns, request.num_output_tokens) == (-1, 0)
    assert sum(record.steps.num_prefill_tokens) == 500 * (3 - len(agents))  # not one of its tokens was read
    assert metrics.total.errors == {"refused": len(agents)}
    _, diagnosis = diagnosed(case)
    assert diagnosis is not None
    assert diagnosis.resource == "max_model_len"


def test_case_11_the_newest_release_cuts_max_tokens_instead(tmp_path: Path) -> None:
    """0.32 serves the same request, and ends its answer at max_model_len: 15,999 tokens of the 16,000."""
    record, metrics = measured(agent(tmp_path, "0.32"))
    assert metrics.total.num_finished == 3
    answers = {request.num_output_tokens for request in record.requests if request.class_id == 0}
    assert answers == {200_000 - 184_001}


def test_case_11_a_prompt_beyond_the_context_is_refused_by_every_release(tmp_path: Path) -> None:
    """A prompt of max_model_len tokens leaves no room for an answer."""
    for version in ("0.20.0", "0.32"):
        workload = {"kind": "closed_loop", "num_requests": 1, "max_concurrency": 1, "classes": one_class(8192, 1)}
        record, _ = measured(scenario(tmp_path, workload, server={"version": version}, max_model_len=8192))
        assert [request.outcome for request in record.requests] == [Outcome.REFUSED]
