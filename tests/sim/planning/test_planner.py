"""The plan finds the fewest replicas that hold, orders by price, and says when to measure; all on given curves."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sim.errors import UserError
from sim.planning import Candidate, Plan, PlanInterruptedError, Request, candidates, make_plan
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.sweep.kept import KeptRuns
from tests.sim.capacity.curves import Served, proportional

OF_GPU = {"l4": 20.0, "h100-80gb": 100.0, "rtx-4090": 50.0}  # users that one supports


def scenario(**server: Any) -> Scenario:
    return Scenario.model_validate({
        "name": "made",
        "server": {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "l4", "flags": {"max_model_len": 8192}, **server},
        "workload": {
            "kind": "users",
            "users": 100,
            "classes": [{
                "name": "chat", "first_prompt_tokens": 100, "next_prompt_tokens": 100, "output_tokens": 10, "turns": 2,
                "think_time": "1s",
            }],
        },
        "objectives": ["ttft.p95 <= 1s"],
        "run": {"duration": "1000s", "seeds": 3},
    })  # fmt: skip


def knee(made: Scenario) -> float:
    """One supports so many users; several behind a router a tenth less than as many times that."""
    server = made.server
    one = OF_GPU[server.gpu] * server.tensor_parallel_size
    return one * server.replicas * (1.0 if server.replicas == 1 else 0.9)


def served(made: Scenario, *, seed: int, load: float | None) -> RunRecord:
    return Served(proportional(knee(made)))(made, seed=seed, load=load)


def no_command(candidate: Candidate, replicas: int, load: float) -> str:
    return f"{candidate.gpu} {replicas} {load:g}"


def planned(
    load: float = 100,
    *,
    gpus: Sequence[str] = ("l4",),
    degrees: Sequence[int] = (1,),
    simulate: Any = served,
    kept: KeptRuns | None = None,
    made: Scenario | None = None,
    **request: Any,
) -> Plan:
    made = made or scenario()
    return make_plan(
        made, candidates(made, gpus, degrees), Request(load, **request), simulate, command=no_command, kept=kept
    )


def fewest(load: float, one: float, **request: Any) -> int:
    """What the plan should find, by trying every number."""
    asked = Request(load, **request)

    def supports(replicas: int) -> float:
        return one * replicas * (1.0 if replicas == 1 else 0.9)

    return next(
        number
        for number in range(1, 1000)
        if supports(number) >= asked.peak and (not asked.survive_loss or (number > 1 and supports(number - 1) >= load))
    )


@pytest.mark.parametrize("load", [10, 60, 100, 340])
@pytest.mark.parametrize("peak_factor", [1.0, 1.3, 3.0])
@pytest.mark.parametrize("survive_loss", [True, False])
def test_it_finds_the_fewest_replicas_that_hold(load: float, peak_factor: float, survive_loss: bool) -> None:
    asked = {"peak_factor": peak_factor, "survive_loss": survive_loss}
    (row,) = planned(load, max_replicas=200, **asked).rows
    assert row.replicas == fewest(load, 20.0, **asked)
    assert row.peak is not None
    assert row.peak.holds
    assert row.peak.load == Request(load, **asked).peak
    assert (row.loss is not None) == survive_loss
    assert row.loss is None or (row.loss.replicas, row.loss.load, row.loss.holds) == (row.replicas - 1, load, True)


def test_where_replicas_help_each_other_fewer_are_found() -> None:
    """A shared cache can make several better than as many times one: the first guess is then too many."""

    def helping(made: Scenario, *, seed: int, load: float | None) -> RunRecord:
        return Served(proportional(20.0 * made.server.replicas * (1 + 0.1 * made.server.replicas)))(
            made, seed=seed, load=load
        )  # fmt: skip

    (row,) = planned(100, simulate=helping).rows
    assert row.one_replica == 22  # so six are tried first; 20 x 5 x 1.5 >= 130 and 20 x 4 x 1.4 >= 100
    assert row.replicas == 5


def test_the_cheapest_that_hold_come_first() -> None:
    plan = planned(gpus=("h100", "l4", "rtx-4090"), prices={"l4": 1.0, "h100-80gb": 9.0, "rtx-4090": 1.0})
    assert [(row.candidate.gpu, row.price_per_hour) for row in plan.rows] == [
        ("rtx-4090", 4.0), ("l4", 8.0), ("h100-80gb", 18.0)
    ]  # fmt: skip


def test_without_a_price_nothing_is_said_of_costs() -> None:
    plan = planned(gpus=("h100", "l4", "rtx-4090"), prices={"l4": 1.0})
    assert [(row.candidate.gpu, row.price_per_hour) for row in plan.rows] == [
        ("l4", 8.0), ("h100-80gb", None), ("rtx-4090", None)
    ]  # fmt: skip


def test_tensor_parallel_sizes_count_their_gpus() -> None:
    rows = {row.candidate.tensor_parallel_size: row for row in planned(degrees=(1, 2)).rows}
    assert rows[2].replicas is not None
    assert rows[2].num_gpus == 2 * rows[2].replicas


def test_a_server_that_supports_nothing_says_what_breaks() -> None:
    def hopeless(made: Scenario, *, seed: int, load: float | None) -> RunRecord:
        return Served(lambda _load, _seed: 5.0)(made, seed=seed, load=load)

    plan = planned(simulate=hopeless)
    assert not plan.holds
    assert plan.rows[0].problem == "supports not even the smallest load: ttft.p95 <= 1s breaks"


def test_a_load_that_no_number_serves_ends_with_what_broke() -> None:
    def stubborn(made: Scenario, *, seed: int, load: float | None) -> RunRecord:
        ttft_s = 2.0 if (load or 0) > 90 else 0.5
        return Served(lambda _load, _seed: ttft_s)(made, seed=seed, load=load)

    (row,) = planned(simulate=stubborn).rows
    assert row.replicas is None
    assert row.problem == "does not hold with 8 replicas"
    assert row.broken is not None
    assert (row.broken.replicas, row.broken.load, row.broken.value) == (8, 130, 2.0)


def test_a_server_that_does_not_start_says_why() -> None:
    made = scenario(model="Qwen/Qwen3-32B")
    rows = {row.candidate.gpu: row for row in planned(gpus=("l4", "h100"), made=made).rows}
    assert rows["l4"].problem is not None
    assert rows["l4"].problem.startswith("does not start: server: vLLM would not start: ")
    assert rows["h100-80gb"].replicas is not None


def test_more_replicas_than_allowed_are_not_simulated() -> None:
    (row,) = planned(1000, max_replicas=8).rows
    assert row.problem == "needs about 65 replicas, more than 8"


def test_what_was_kept_is_not_simulated_again(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path)

    def never(made: Scenario, *, seed: int, load: float | None) -> RunRecord:
        raise AssertionError(f"made again: {made.server.replicas} at {load} with seed {seed}")

    assert planned(kept=kept).rows == planned(kept=kept, simulate=never).rows


def test_an_interrupted_plan_keeps_what_it_finished_and_goes_on_there(tmp_path: Path) -> None:
    kept, asked = KeptRuns(tmp_path), []

    def stopping(at: int) -> Callable[..., RunRecord]:
        def simulate(made: Scenario, *, seed: int, load: float | None) -> RunRecord:
            asked.append((made.server.gpu, made.server.replicas, load, seed))
            if len(asked) == at:
                raise KeyboardInterrupt
            return served(made, seed=seed, load=load)

        return simulate

    with pytest.raises(PlanInterruptedError) as stopped:
        planned(gpus=("l4", "rtx-4090"), kept=kept, simulate=stopping(30))
    assert stopped.value.plan.interrupted
    assert [row.candidate.gpu for row in stopped.value.plan.rows] == ["l4"]
    made, asked[:] = asked[:29], []
    whole = planned(gpus=("l4", "rtx-4090"), kept=kept, simulate=stopping(-1))
    assert not set(made) & set(asked)
    assert whole.rows == planned(gpus=("l4", "rtx-4090")).rows


def test_a_plan_needs_objectives_and_a_load_that_can_be_scaled() -> None:
    made = scenario()
    with pytest.raises(UserError, match="objectives: missing key"):
        planned(made=made.model_copy(update={"objectives": ()}))


# --- candidates -----------------------------------------------------------------------------------------------------


def test_the_smallest_tensor_parallelism_that_starts_and_twice_that() -> None:
    tried = candidates(scenario(model="Qwen/Qwen3-32B"), ["l4", "h100"])
    assert [(each.gpu, each.tensor_parallel_size) for each in tried] == [
        ("l4", 4), ("l4", 8), ("h100-80gb", 1), ("h100-80gb", 2)
    ]  # fmt: skip


def test_a_measured_profile_is_taken_for_the_server_it_was_measured_on() -> None:
    made = scenario(model="Qwen/Qwen3-14B", gpu="h100", version="0.23")
    own, other = candidates(made, ["h100", "l4"], [1])[0], candidates(made, ["a100"], [1])[0]
    assert own.scenario is not None
    assert own.scenario.server.profile == "analytical"  # the scenario's own choice is left as it is
    found = candidates(scenario(model="Qwen/Qwen3-14B", gpu="l4", version="0.23"), ["h100"], [1])[0]
    assert found.changes["server.profile"] == "qwen3-14b-h100"
    assert other.changes["server.profile"] == "analytical"


def test_sizes_of_other_hardware_are_left_out_and_said() -> None:
    made = scenario(memory={"weights_gib": 14.2}, flags={"max_model_len": 8192, "num_gpu_blocks_override": 600})
    own, other = candidates(made, ["l4", "h100"], [1])
    assert own.scenario is not None
    assert own.scenario.server.flags.num_gpu_blocks_override == 600
    assert other.scenario is not None
    assert other.scenario.server.flags.num_gpu_blocks_override is None
    assert other.notes == ("measured memory and given KV sizes are of another server, and left out",)


def test_a_plan_looks_at_the_steady_state() -> None:
    made = scenario(replicas=2, router="prefix_aware", failures=[{"after": "10s", "replica": 1}])
    (own,) = candidates(made, [], [1])
    assert own.scenario is not None
    assert own.scenario.server.failures == ()
    assert own.scenario.server.router == "prefix_aware"
    assert own.notes == ("failures left out: a plan looks at the steady state",)
    assert "server.failures=null" in own.settings(3)


def test_near_a_bound_and_uncalibrated_a_measurement_is_due() -> None:
    (row,) = planned(130, peak_factor=1.0, survive_loss=False).rows  # 8 x 18 = 144: 130 is 90.3 % of it
    assert row.replicas == 8
    assert not row.calibrated
    assert [reason.split(":")[0] for reason in row.spot_check] == [
        "step times are uncalibrated", "ttft.p95 is at 90 % of its bound at the peak"
    ]  # fmt: skip
