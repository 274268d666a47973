"""What a search makes small or large has a name, a side on which it is good, and a unit."""

from __future__ import annotations

import pytest

from sim.errors import UserError
from sim.hardware import find_gpu
from sim.scenario.model import Scenario
from sim.search import Prices, parse_measure, parse_measures
from tests.sim.results.toys import users_scenario
from tests.sim.search.made import scenario


def users() -> Scenario:
    return users_scenario("ttft.p99.5 <= 1s", "errors <= 1%")


def test_each_metric_stands_on_its_good_side() -> None:
    found = parse_measures("ttft.p95, cost,gpus,itl.mean[only]", "users,throughput,goodput", users())
    assert [(each.name, each.direction) for each in found] == [
        ("ttft.p95", "minimize"),
        ("cost", "minimize"),
        ("gpus", "minimize"),
        ("itl.mean[only]", "minimize"),
        ("users", "maximize"),
        ("throughput", "maximize"),
        ("goodput", "maximize"),
    ]
    assert [each.unit for each in found] == ["s", "per hour", "", "s", "", "tok/s", ""]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("ttft.p95", 0.0205, "20.5 ms"),
        ("ttft.p95", 12.34, "12.3 s"),
        ("throughput", 543.51, "543.5 tok/s"),
        ("errors", 0.001, "0.1 %"),
        ("gpus", 4, "4"),
        ("ttft.p95", None, "no data"),
    ],
)
def test_values_are_shown_with_their_unit(name: str, value: float | None, shown: str) -> None:
    assert parse_measure(name, users()).shown(value) == shown


def test_a_percentile_that_an_objective_names_may_be_asked_for() -> None:
    assert parse_measure("ttft.p99.5", users()).objective is not None
    with pytest.raises(UserError, match=r"ttft.p97: a run states p50, p90, p95, p99, and those that"):
        parse_measure("ttft.p97", users())


@pytest.mark.parametrize(
    ("minimize", "maximize", "message"),
    [
        ("", "", "--minimize, --maximize: missing; for example --minimize ttft.p95,cost"),
        ("tftt.p95", "", "--minimize tftt.p95: unknown metric; did you mean 'ttft'?"),
        ("ttft", "", "--minimize ttft: ttft needs a statistic; got 'ttft'; write ttft.p95"),
        ("ttft.q95", "", "--minimize ttft.q95: unknown statistic 'q95' of ttft"),
        ("throughput", "", "--minimize throughput: more of it is better; put it behind --maximize"),
        ("", "itl.p99", "--maximize itl.p99: more of it is worse; put it behind --minimize"),
        ("ttft.p95,ttft.p95", "", "--minimize ttft.p95: given twice"),
        ("", "throughput,output_throughput", "--maximize output_throughput: given twice"),
        ("", "request_rate", "--maximize request_rate: the scenario searches for users; write users"),
        ("ttft.p95[chat]", "", "--minimize ttft.p95[chat]: classes: only"),
        ("users", "", "--minimize users: more of it is better; put it behind --maximize"),
    ],
)
def test_what_is_no_measure_is_told_in_one_line(minimize: str, maximize: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_measures(minimize, maximize, users())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_users_are_the_answer_of_a_search_and_not_of_one_load() -> None:
    with pytest.raises(UserError, match="--metrics users: the answer of a search, but one load is simulated"):
        parse_measure("users", scenario())


def test_a_price_belongs_to_a_gpu_by_any_of_its_names() -> None:
    h100 = find_gpu("h100").name
    prices = Prices(1.0, {h100: 2.5})
    assert prices.per_hour("NVIDIA H100 80GB HBM3", 4) == 10.0
    assert prices.per_hour("rtx-4090", 2) == 2.0
    assert Prices(None, {h100: 2.5}).per_hour("rtx-4090", 1) is None
