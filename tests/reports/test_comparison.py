"""Runs side by side: differences with their uncertainty, and only the settings that differ."""

import pytest

from reports.content import plain
from reports.context import Prices
from reports.html import render_html
from reports.markdown import render_markdown
from reports.model import build_report
from reports.source import Source
from reports.words import Words
from sim.capacity import find_capacity
from tests.sim.capacity.curves import Curve, Served, proportional
from tests.sim.results.toys import open_loop_scenario, users_scenario

EN = Words.of("en")
SURE = proportional(30.5)
UNSURE = proportional(20, 25, 31, 37, 42)


def source(name: str, curve: Curve, *changes: str) -> Source:
    scenario = users_scenario("ttft.p95 <= 1s", changes=changes)
    return Source.of_result(scenario, find_capacity(scenario, Served(curve)), {}, name)


def row(sources: list[Source], name: str, title: str) -> object:
    table = build_report(sources, EN).tables()[0]
    column = [column.title for column in table.columns].index(name)
    return next(each for each in table.rows if each[0] == title)[column]


def test_the_difference_has_its_uncertainty() -> None:
    sources = [source("before", SURE), source("after", proportional(45.5))]
    assert row(sources, "before", "difference") == "–"
    assert row(sources, "after", "difference") == "+15 (+50\u00a0%), ± 0 at 95 %"


def test_a_difference_within_the_noise_is_called_chance() -> None:
    text = str(row([source("a", UNSURE), source("b", proportional(22, 27, 33, 39, 44))], "b", "difference"))
    assert text.endswith("at 95 %: may be chance")


def test_a_load_by_the_ttft_is_at_least_the_last_that_was_tried() -> None:
    sources = [source("a", SURE), source("b", SURE, "workload.users=10", "search=null")]
    table = next(table for table in build_report(sources, EN).tables() if table.key == "slo_comparison")
    searched, one_load = (
        [EN.cell(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows
    )
    assert [text.startswith("at least") for text in searched[1:]] == [False, False, False, True]
    assert one_load == ["b", "–", "at least 10", "at least 10", "at least 10"]


def test_one_seed_has_no_uncertainty() -> None:
    sources = [source("a", SURE, "run.seeds=1"), source("b", proportional(45.5), "run.seeds=1")]
    assert row(sources, "b", "difference") == "+15 (+50\u00a0%), no interval"


def test_at_a_common_load_equal_seeds_are_compared_with_each_other() -> None:
    """Every seed is 10 % better, and they differ by far more than that: pairs tell it, two intervals would not."""
    knees = (20.0, 25.0, 31.0, 37.0, 42.0)
    sources = [source("a", proportional(*knees)), source("b", proportional(*(1.1 * knee for knee in knees)))]
    paired = next(table for table in build_report(sources, EN).tables() if table.key == "paired_1")
    (name, before, after, difference, low, high, clear) = (plain(cell) for cell in paired.rows[0])
    assert name == "ttft.p95"
    assert float(str(after)) == pytest.approx(float(str(before)) / 1.1, rel=1e-4)
    assert float(str(difference)) == pytest.approx(float(str(after)) - float(str(before)), rel=1e-3)
    assert float(str(low)) < float(str(difference)) < float(str(high)) < 0
    assert clear == "yes"


def test_runs_without_a_common_load_have_no_pairs() -> None:
    sources = [source("a", SURE, "search.from=1", "search.to=2"), source("b", SURE, "search.from=3", "search.to=4")]
    assert not any(table.key.startswith("paired") for table in build_report(sources, EN).tables())


def test_only_settings_that_differ_are_shown() -> None:
    sources = [source("a", SURE), source("b", SURE, "server.flags.long_prefill_token_threshold=64")]
    settings = next(table for table in build_report(sources, EN).tables() if table.key == "settings")
    assert settings.rows == (("long_prefill_token_threshold", "0", "64"),)


def test_equal_runs_have_nothing_to_list() -> None:
    report = build_report([source("a", SURE), source("b", SURE)], EN)
    assert not any(table.key == "settings" for table in report.tables())
    assert "The runs have the same settings." in render_markdown(report, EN)


def test_users_by_bound_stand_side_by_side() -> None:
    report = build_report([source("a", SURE), source("b", proportional(45.5))], EN)
    table = next(table for table in report.tables() if table.code == "T6")
    at_one_second = [column.key for column in table.columns].index("ttft_p95_1s")
    assert [each[at_one_second] for each in table.rows] == [
        pytest.approx(30.5, rel=0.01),
        pytest.approx(45.5, rel=0.01),
    ]


def test_uncalibrated_runs_are_named_at_the_top() -> None:
    sources = [source("a", SURE), source("b", SURE)]
    for each, calibrated in zip(sources, (True, False), strict=True):
        each.document["calibrated"] = calibrated
    text = render_markdown(build_report(sources, EN), EN)
    assert 0 < text.index("Uncalibrated: b. Their step times") < text.index("|")
    sources[1].document["calibrated"] = True
    assert "Uncalibrated:" not in render_markdown(build_report(sources, EN), EN)


def test_different_units_are_not_subtracted() -> None:
    rate = open_loop_scenario("ttft.p95 <= 1s")
    other = Source.of_result(rate, find_capacity(rate, Served(proportional(7.77))), {}, "rate")
    report = build_report([source("users", SURE), other], EN)
    assert "counted in different units" in render_markdown(report, EN)
    assert row([source("users", SURE), other], "rate", "difference") == "–"


def test_costs_are_compared_when_prices_are_given() -> None:
    sources = [source("a", SURE), source("b", SURE, "server.tensor_parallel_size=2")]
    table = build_report(sources, EN, Prices(1.0, "USD")).tables()[0]
    title, *costs = table.rows[-2]
    assert title == "cost of 1 M output tokens (USD)"
    assert table.rows[-1][0] == "a user, a month (USD)"
    assert [plain(cost) for cost in table.rows[-1][1:]] == pytest.approx([730 / 30, 2 * 730 / 30])
    values = [float(str(plain(cost))) for cost in costs]
    assert values[1] == pytest.approx(2 * values[0])


@pytest.mark.parametrize("lang", ["en", "pt-BR"])
def test_a_comparison_is_a_page_like_any_other(lang: str) -> None:
    words = Words.of(lang)
    report = build_report([source("a", SURE), source("b", UNSURE), source("c", lambda load, seed: 9.0)], words)
    assert {"F1", "F7"} <= {figure.code for figure in report.figures()}
    page = render_html(report, words)
    assert page == render_html(report, words)
    assert "{" not in "".join(figure.alt for figure in report.figures())
