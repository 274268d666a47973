"""The text answers first, then says why not more, where the numbers come from, and what was tried."""

import copy

import pytest

from reports.document import Document, build_document
from reports.terminal import render
from sim.capacity import find_capacity
from sim.deployment import plan
from sim.scenario.load import override
from sim.scenario.model import Objective, Scenario
from tests.sim.capacity.curves import Curve, Served, proportional
from tests.sim.results.toys import open_loop_scenario, simulate_mm, users_scenario

ONE_SECOND = "ttft.p95 <= 1s"


def document(curve: Curve, scenario: Scenario | None = None) -> Document:
    scenario = scenario or users_scenario(ONE_SECOND, changes=["active_share=0.2"])
    return build_document(scenario, plan(scenario), find_capacity(scenario, Served(curve)))


def test_the_sections_come_in_the_order_of_a_readers_questions() -> None:
    text = render(document(proportional(28, 30, 32, 34, 36)))
    sections = [part.splitlines()[0] for part in text.split("\n\n")]
    assert [section.split(" (")[0] for section in sections] == [
        "toy: 31 users supported",
        "Why not more",
        "Where the numbers come from",
        "Each load tried",
        "Memory of one GPU",
    ]
    assert text.endswith("\n")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_answer_has_its_interval_and_its_objectives() -> None:
    lines = render(document(proportional(28, 30, 32, 34, 36))).splitlines()
    assert lines[:3] == [
        "toy: 31 users supported (95 % interval 28 to 35)",
        "  objectives (means over 5 seeds): ttft.p95 <= 1s (is 976 ms)",
        "  registered people: about 155, when 20 % of them are at work at the same moment (active_share)",
    ]


def test_what_broke_is_named_with_its_value_and_its_resource() -> None:
    text = render(document(proportional(30.5)))
    assert "at 31 users ttft.p95 is 1.02 s: ttft.p95 <= 1s" in text
    assert "bound by token_budget: reading a prompt takes 1.02 s (p95)" in text
    assert "to change it: " in text


def test_errors_are_and_a_latency_is() -> None:
    built = document(proportional(30.5))
    point = next(each for each in built["points"] if each["load"] == 31)
    broken = {"objective": "errors[chat] <= 0.1%", "name": "errors[chat]", "met": False}
    point["objectives"] = [{**broken, "shown": Objective.model_validate(broken["objective"]).show(0.01111)}]
    assert "at 31 users errors[chat] are 1.11 %: errors[chat] <= 0.1%" in render(built)


def test_an_analytical_model_is_called_uncalibrated() -> None:
    assert "step times: UNCALIBRATED, an analytical roofline" in render(document(proportional(30)))


def test_a_profile_states_its_errors() -> None:
    built = document(proportional(30))
    built["calibrated"] = True
    row = {"run": "r", "band": None, "metric": "ttft_ms", "statistic": "p50", "measured": 1, "predicted": 1}
    built["step_times"] = {
        "source": "fitted",
        "description": None,
        "errors": [{**row, "held_out": True, "error_percent": error} for error in (-4.0, 1.0, 2.5)],
    }
    assert (
        "profile fitted, fitted to a measured server; errors on runs left out of the fit: median 2.5 %, largest 4 %"
        in (render(built))
    )
    for each in built["step_times"]["errors"]:
        each["held_out"] = False
    assert "errors on the runs it was fitted to: median 2.5 %" in render(built)
    built["step_times"]["errors"] = []
    assert "errors not stated" in render(built)
    built["calibrated"] = False
    assert "UNCALIBRATED, profile fitted, not fitted to this server" in render(built)


def test_every_load_tried_has_a_row() -> None:
    built = document(proportional(30))
    rows = render(built).split("Each load tried")[1].split("\n\n")[0].splitlines()[2:]
    assert [row.split()[0] for row in rows] == [f"{point['load']:g}" for point in built["points"]]
    assert rows[0].endswith("met")
    assert rows[-1].endswith("broken: ttft.p95")


def test_zero_and_the_ceiling_have_their_own_wording() -> None:
    assert render(document(lambda load, seed: 9.0)).startswith("toy: 0 users: not even 1 user is supported\n")
    assert render(document(proportional(1e6))).startswith(
        "toy: at least 400 users supported: the search ended there (search.to) and nothing broke\n"
    )
    assert "Why not more" not in render(document(proportional(1e6)))


def test_the_interval_says_what_it_covers() -> None:
    scenario, curve = users_scenario(ONE_SECOND), proportional(28, 30, 32, 34, 36)
    seeds = find_capacity(scenario, Served(curve))
    fit = find_capacity(scenario, Served(curve), drawn=Served(proportional(20, 38, 30, 44, 30)))
    texts = [render(build_document(scenario, plan(scenario), result)) for result in (seeds, fit)]
    assert "It says nothing of the error of the step times" in texts[0]
    assert "how far they move with step times drawn\n    from the profile's covariance." in texts[1]
    assert "nothing of the error" not in texts[1]


def test_one_seed_has_no_interval() -> None:
    scenario = users_scenario(ONE_SECOND, changes=["run.seeds=1"])
    assert render(document(proportional(30), scenario)).startswith("toy: 30 users supported (one seed: no interval)\n")


def test_a_growing_queue_is_said_in_words() -> None:
    changes = ["run.duration=200s", "run.warm_up=20s", "run.seeds=2", "search.from=8", "search.to=20"]
    scenario = open_loop_scenario("ttft.p95 <= 1000s", changes=changes)
    text = render(build_document(scenario, plan(scenario), find_capacity(scenario, simulate_mm)))
    assert "the queue grows as long as the load lasts, although the objectives hold in this run" in text
    assert text.rsplit("\n\n", 2)[1].splitlines()[-1].endswith(("overloaded", "met"))


@pytest.mark.parametrize(
    ("users", "objectives", "headline"),
    [
        (20, [ONE_SECOND], "toy at 20 users: all objectives are met"),
        (40, [ONE_SECOND], "toy at 40 users: NOT supported"),
        (1, [ONE_SECOND], "toy at 1 user: all objectives are met"),
        (40, [], "toy at 40 users: no objectives to judge"),
    ],
)
def test_a_single_load_is_judged_in_the_first_line(users: int, objectives: list[str], headline: str) -> None:
    changes = {"workload.users": users, "search": None, "objectives": objectives}
    text = render(document(proportional(30), override(users_scenario(ONE_SECOND), changes)))
    assert text.splitlines()[0] == headline
    assert ("\nWhy\n" in text) is (headline.endswith("NOT supported"))


def test_an_interrupted_search_says_what_held() -> None:
    built = copy.deepcopy(document(proportional(30)))
    built["supported_users"] = {"value": None, "low": None, "high": None}
    built["binding_objective"] = None
    assert render(built).startswith("toy: interrupted, no answer; everything held at 30 users\n")
    built["points"] = []
    assert render(built).startswith("toy: interrupted, no answer\n")


def test_warnings_and_notes_come_last() -> None:
    built = document(proportional(30))
    built["notes"], built["warnings"] = ["not monotone"], ["beyond the data"]
    assert render(built).endswith("Warnings\n  not monotone\n  beyond the data\n")
