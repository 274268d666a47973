"""The interval covers what a profile is not sure of: it widens with the fit's uncertainty, and the answer stays."""

import math
import pickle
from pathlib import Path

import pytest
from scipy.stats import t

from sim.capacity import CapacityResult, find_capacity
from sim.draws import drawn_simulate
from sim.engine.profile import Profile, load_profile, save_profile
from sim.engine.profile_terms import FittedStepTime
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.sim.capacity.curves import Served, proportional
from tests.sim.results.toys import users_scenario

ONE_SECOND = "ttft.p95 <= 1s"
KNEES = (150.0, 160.0, 170.0, 180.0, 190.0)

SCENARIO = """
name: tiny
server: {kind: vllm, model: Qwen/Qwen3-14B, gpu: h100, profile: PROFILE, flags: {max_model_len: 8192, max_num_seqs: 64}}
workload:
  kind: users
  classes:
    - {name: chat, first_prompt_tokens: 500, next_prompt_tokens: 100, output_tokens: 40, turns: 4, think_time: 3s}
objectives: [tpot.p95 <= 16ms]
search: {vary: users, from: 32, to: 128, resolution: 4}
run: {duration: 30s, warm_up: 10s, seeds: 3}
"""


def moved(*factors: float) -> Served:
    """The servers of KNEES, each with its knee moved by a factor."""
    return Served(proportional(*(knee * factor for knee, factor in zip(KNEES, factors, strict=True))))


def test_the_half_widths_are_added_as_squares() -> None:
    scenario, factors = users_scenario(ONE_SECOND), (1.1, 0.9, 1.2, 0.8, 1.1)
    plain = find_capacity(scenario, Served(proportional(*KNEES)))
    wide = find_capacity(scenario, Served(proportional(*KNEES)), drawn=moved(*factors))
    assert (plain.covers, wide.covers) == (("seeds",), ("seeds", "fit"))
    assert (wide.value, wide.next_load, wide.points) == (plain.value, plain.next_load, plain.points)
    spread = math.sqrt(sum((knee * (factor - 1)) ** 2 for knee, factor in zip(KNEES, factors, strict=True)) / 5)
    of_seeds = t.ppf(0.975, 4) * math.sqrt(sum((knee - 170) ** 2 for knee in KNEES) / 4 / 5)
    half = math.hypot(of_seeds, t.ppf(0.975, 5) * spread)
    assert (wide.low, wide.high) == (pytest.approx(170 - half, rel=0.02), pytest.approx(170 + half, rel=0.02))


def test_draws_that_change_nothing_leave_the_interval_as_it_is() -> None:
    scenario = users_scenario(ONE_SECOND)
    plain = find_capacity(scenario, Served(proportional(*KNEES)))
    same = find_capacity(scenario, Served(proportional(*KNEES)), drawn=moved(1, 1, 1, 1, 1))
    assert (same.value, same.low, same.high) == (plain.value, plain.low, plain.high)
    assert plain.num_runs < same.num_runs <= plain.num_runs + 2 * len(KNEES)


def test_a_single_load_and_a_single_seed_have_nothing_to_cover() -> None:
    for changes in (["search=null", "workload.users=8"], ["run.seeds=1"]):
        drawn = moved(1, 1, 1, 1, 1)
        result = find_capacity(users_scenario(ONE_SECOND, changes=changes), Served(proportional(*KNEES)), drawn=drawn)
        assert (result.low, result.covers, drawn.asked) == (None, (), [])


def with_stderr(folder: Path, factor: float | None) -> Scenario:
    """A server whose profile is so many times as uncertain as the shipped one; None: says nothing of it."""
    profile = load_profile("qwen3-14b-h100")
    step_time = profile.step_time
    assert isinstance(step_time, FittedStepTime)
    assert step_time.covariance is not None
    matrix = tuple(tuple((factor or 0) ** 2 * cell for cell in row) for row in step_time.covariance.matrix)
    covariance = None if factor is None else step_time.covariance.model_copy(update={"matrix": matrix})
    update = {"step_time": step_time.model_copy(update={"covariance": covariance})}
    certain = {
        name: getattr(profile.client_latency, name).model_copy(update={"stderr": None, "remark": None})
        for name in type(profile.client_latency).model_fields
    }
    update["client_latency"] = profile.client_latency.model_copy(update=certain)  # type: ignore[assignment]
    path = folder / f"{factor}.yaml"
    save_profile(Profile.model_validate(profile.model_copy(update=update).model_dump()), path)
    return scenario_from_text(SCENARIO.replace("PROFILE", str(path)))


def found(scenario: Scenario, jobs: int = 1) -> CapacityResult:
    return find_capacity(scenario, simulate, jobs=jobs, drawn=drawn_simulate(scenario))


def test_an_uncertain_profile_widens_the_interval_and_a_certain_one_does_not(tmp_path: Path) -> None:
    silent, certain, uncertain = (found(with_stderr(tmp_path, factor)) for factor in (None, 0.0, 10.0))
    assert (silent.covers, certain.covers, uncertain.covers) == (("seeds",), ("seeds", "fit"), ("seeds", "fit"))
    assert silent.value == certain.value == uncertain.value
    assert (silent.low, silent.high) == (certain.low, certain.high)
    assert None not in (certain.low, certain.high, uncertain.low, uncertain.high)
    assert uncertain.high - uncertain.low > 1.5 * (certain.high - certain.low)  # type: ignore[operator]


def test_a_draw_belongs_to_its_seed_alone_and_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    scenario = with_stderr(tmp_path, 10.0)
    drawn = drawn_simulate(scenario)
    assert drawn is not None
    assert len({str(profile.step_time) for profile in drawn.profiles.values()}) == 3
    sent = pickle.loads(pickle.dumps(drawn))
    assert sent.profiles == drawn.profiles
    once, again = (each(scenario, seed=1, load=4) for each in (drawn, sent))
    assert once == again
    assert once.steps != simulate(scenario, seed=1, load=4).steps
    assert [each.sent_ns for each in once.requests[:4]] == [
        each.sent_ns for each in simulate(scenario, seed=1, load=4).requests[:4]
    ]


def test_there_is_nothing_to_draw_without_a_fitted_profile() -> None:
    assert drawn_simulate(scenario_from_text(SCENARIO.replace("PROFILE", "analytical"))) is None
    ollama = "{kind: ollama, model: llama3.1:8b, gpu: rtx-4090}"
    lines = [line if "kind: vllm" not in line else f"server: {ollama}" for line in SCENARIO.splitlines()]
    assert drawn_simulate(scenario_from_text("\n".join(lines))) is None
