"""Effects are differences of equal seeds; what means the same server or does not start costs no simulation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UserError
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.search import parse_measure
from sim.what_if import Change, WhatIf, WhatIfProgress, default_changes, effect_of, parse_changes
from tests.sim.search.made import Served, scenario

numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=2, max_size=8), numbers)
def test_what_all_seeds_have_in_common_does_not_blur_an_effect(days: list[float], shift: float) -> None:
    effect = effect_of(days, [day + shift for day in days])
    assert effect.difference is not None
    assert effect.low is not None
    assert effect.high is not None
    assert math.isclose(effect.difference, shift, abs_tol=1e-9 * (1 + max(map(abs, days))))
    assert effect.high - effect.low <= 1e-6 * (1 + max(map(abs, days)))


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8))
def test_the_interval_holds_the_difference_and_turns_with_it(pairs: list[tuple[float, float]]) -> None:
    before, after = zip(*pairs, strict=True)
    there, back = effect_of(before, after), effect_of(after, before)
    assert there.low is not None
    assert there.high is not None
    assert there.difference is not None
    assert there.low <= there.difference <= there.high
    assert back.difference == -there.difference
    assert back.is_clear == there.is_clear


def test_one_seed_gives_no_interval_and_no_data_gives_no_effect() -> None:
    one = effect_of([1.0], [3.0])
    assert (one.difference, one.low, one.is_clear, one.is_none) == (2.0, None, False, False)
    part = effect_of([1.0, None, 2.0], [2.0, 5.0, None])
    assert (part.before, part.after, part.num_pairs) == (1.0, 2.0, 1)
    assert effect_of([None], [1.0]).difference is None
    assert effect_of([1.0, 2.0], [1.0, 2.0]).is_none


def what_if(
    changes: list[Change], base: Scenario, served: Served, report: list[WhatIfProgress] | None = None
) -> WhatIf:
    measures = [parse_measure("ttft.p95", base)]
    return WhatIf(base, None, changes, measures, served, None if report is None else report.append)


def test_each_change_is_simulated_with_the_seeds_of_the_baseline() -> None:
    asked: list[tuple[int | None, int]] = []

    class Noisy(Served):
        def __call__(self, scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
            seats = scenario.server.flags.max_num_seqs
            asked.append((seats, seed))
            return Served(lambda _: (1000.0 * (seed + 1) + (seats or 0), 10.0))(scenario, seed=seed, load=load)

    base = scenario(server__max_num_seqs=8, run__seeds=3)
    news: list[WhatIfProgress] = []
    result = what_if(parse_changes(["max_num_seqs=4,8,16"], base), base, Noisy(), news).run()
    assert asked == [(seats, seed) for seats in (8, 4, 16) for seed in (0, 1, 2)]
    assert [each.change.text for each in result.changes] == ["max_num_seqs 8 -> 4", "max_num_seqs 8 -> 16"]
    few, many = (each.effects["ttft.p95"] for each in result.changes)
    assert (few.difference, many.difference) == (pytest.approx(-0.004), pytest.approx(0.008))
    assert few.is_clear
    assert many.is_clear
    assert [(each.num_done, each.num_runs) for each in news] == [(number, 9) for number in range(1, 10)]


def test_a_change_that_means_the_same_server_or_does_not_start_costs_nothing() -> None:
    base, served = scenario(), Served(lambda _: (1.0, 1.0))
    changes = [
        Change("server.max_num_seqs", 256, None),
        Change("server.gpu_memory_utilization", 0.92, 0.1),
        Change("server.max_num_seqs", 256, 16),
    ]
    same, refused, made = what_if(changes, base, served).run().changes
    assert len(served.asked) == 2
    assert (same.status, refused.status, made.status) == ("same", "refused", "simulated")
    assert same.effects["ttft.p95"].is_none
    assert "would not start" in refused.cause


def test_a_simulation_that_fails_costs_its_change_alone() -> None:
    def flawed(asked: Scenario) -> tuple[float, float]:
        if asked.server.flags.max_num_seqs == 16:
            raise RuntimeError("boom")
        return 1.0, 1.0

    base = scenario(server__max_num_seqs=8)
    bad, good = what_if(parse_changes(["max_num_seqs=16,32"], base), base, Served(flawed)).run().changes
    assert (bad.status, bad.cause, good.status) == ("failed", "RuntimeError: boom", "simulated")


def test_a_baseline_that_does_not_start_has_no_effects() -> None:
    base = scenario(server__gpu_memory_utilization=0.1)
    with pytest.raises(UserError, match="vLLM would not start"):
        what_if([], base, Served()).run()


def test_by_default_each_flag_is_changed_to_a_value_that_it_has_not() -> None:
    changes = default_changes(scenario())
    assert all(each.before != each.after for each in changes)
    assert {each.key.removeprefix("server.") for each in changes} == {
        "max_num_seqs",
        "max_num_batched_tokens",
        "gpu_memory_utilization",
        "max_model_len",
        "long_prefill_token_threshold",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "kv_cache_dtype",
        "tensor_parallel_size",
    }
    assert len(changes) == len({(each.key, each.after) for each in changes}) == 12
