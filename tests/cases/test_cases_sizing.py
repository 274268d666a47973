"""Case 21: the table that a report shows, users by TTFT target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sim.capacity import CapacityResult, find_capacity
from sim.results.records import RunRecord
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import one_class, scenario, write_profile

BOUNDS_S = (0.2, 0.5, 1.0, 2.0)

GIVEN = {
    "LLaMA-3-8B INT4": (6, 14, 24, 38),
    "LLaMA-3-8B FP16": (3, 8, 14, 22),
    "Mistral-7B INT4": (7, 15, 26, 40),
    "Qwen2.5-7B INT4": (6, 14, 23, 36),
}

STEPS = {
    "LLaMA-3-8B INT4": (18.0, 0.0765, 2.3),
    "LLaMA-3-8B FP16": (20.0, 0.160, 5.7),
    "Mistral-7B INT4": (16.0, 0.0680, 2.25),
    "Qwen2.5-7B INT4": (18.0, 0.0765, 2.65),
}
"""Floor in ms, ms a token, ms a decode: fitted to the first and the last column; prompts of 256 tokens, two a step."""


def rtx_3090(folder: Path, model: str, bound_s: float) -> Scenario:
    """Users who all send at once, as in the report; the last of them is to see its first token in time."""
    floor_ms, token_ms, decode_ms = STEPS[model]
    write_profile(
        folder, floor_us=1000 * floor_ms, per_token_us=1000 * token_ms, per_decode_us=1000 * decode_ms, overlap=0
    )
    return scenario(
        folder,
        {"kind": "closed_loop", "num_requests": 48, "classes": one_class(256, 256)},
        server={"gpu": "rtx-3090", "memory": {"kv_cache_gib": 4}},
        objectives=[f"ttft.max <= {bound_s}s"],
        search={"vary": "max_concurrency", "from": 2, "to": 48},
        max_model_len=2048,
        max_num_batched_tokens=512,
    )


def kept(simulated: dict[tuple[float | None, int], RunRecord]) -> Callable[..., RunRecord]:
    """Returns `simulate` that makes each run once: a bound changes what is asked of a run, not the run."""

    def once(case: Scenario, *, seed: int, load: float | None) -> RunRecord:
        if (load, seed) not in simulated:
            simulated[load, seed] = simulate(case, seed=seed, load=load)
        return simulated[load, seed]

    return once


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[CapacityResult]]:
    """Returns a row of four searches for each model."""
    rows = {}
    for model in GIVEN:
        folder, once = tmp_path_factory.mktemp("case21"), kept({})
        rows[model] = [find_capacity(rtx_3090(folder, model, bound_s), once) for bound_s in BOUNDS_S]
    return rows


def users(row: list[CapacityResult]) -> list[float]:
    return [result.value or 0 for result in row]


@pytest.mark.parametrize("model", GIVEN)
def test_case_21_the_row_of_a_model(table: dict[str, list[CapacityResult]], model: str) -> None:
    """Users at TTFT <= .2/.5/1/2 s, within one user or 8 %; the middle columns are predictions."""
    for value, given in zip(users(table[model]), GIVEN[model], strict=True):
        assert value == pytest.approx(given, abs=max(1.0, 0.08 * given))


def test_case_21_a_looser_target_supports_more_users(table: dict[str, list[CapacityResult]]) -> None:
    """Each row grows with the bound, and each answer is the last load that holds before one that breaks."""
    for row in table.values():
        assert users(row) == sorted(set(users(row)))
        for result in row:
            assert result.next_load == (result.value or 0) + 1
            assert result.diagnosis is not None
            assert result.diagnosis.resource == "token_budget"


def test_case_21_the_order_of_the_models(table: dict[str, list[CapacityResult]]) -> None:
    """In every column Mistral INT4 >= LLaMA INT4 >= Qwen INT4 > LLaMA FP16."""
    order = ("Mistral-7B INT4", "LLaMA-3-8B INT4", "Qwen2.5-7B INT4", "LLaMA-3-8B FP16")
    for column in zip(*(users(table[model]) for model in order), strict=True):
        assert list(column) == sorted(column, reverse=True)
        assert column[2] > column[3]
