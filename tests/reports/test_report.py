"""A report has every table and figure that planners know, the same content in every format, and nothing invented."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from reports.content import Chart, Report, Table, Timeline, data_table
from reports.context import Prices
from reports.html import render_html
from reports.markdown import render_markdown
from reports.model import build_report
from reports.sections.sweep import knee
from reports.source import Source
from reports.words import LANGUAGES, Words
from sim.capacity import find_capacity
from sim.scenario.load import override
from tests.reports import sample
from tests.sim.capacity.curves import Served, proportional
from tests.sim.results.toys import open_loop_scenario

EN = Words.of("en")


@pytest.fixture(scope="module")
def report() -> Report:
    return build_report([sample.source()], EN, Prices(0.4, "USD"))


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render_html(report, EN)


class Page(HTMLParser):
    """What a page would fetch, run, and say."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href", "srcset", "data", "poster") and value and not value.startswith(("#", "data:")):
                self.fetched.append(value)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] != "style":
            self.texts.append(data)


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    return page


def test_every_table_and_figure_that_applies_is_there(report: Report) -> None:
    codes = {table.code for table in report.tables()} | {figure.code for figure in report.figures()}
    assert {"T2", "T3", "T4", "T5", "T6", "T8", "T10"} <= codes
    assert {"F1", "F2", "F3", "F4", "F5", "F6", "F9", "F10"} <= codes


def test_the_first_screen_answers(report: Report) -> None:
    head = report.headline
    assert head is not None
    document = sample.source().document
    assert head.answer == f"{document['supported_users']['value']}\u00a0users"
    assert f"{document['supported_users']['low']} to {document['supported_users']['high']}" in head.lines[0]
    assert any("ttft.p95 <= 1s" in line for line in head.binds)
    assert "uncalibrated" in head.calibration
    assert not head.calibrated
    assert [limit.used for limit in head.limits] == sorted((limit.used for limit in head.limits), reverse=True)
    assert 1 <= len(head.changes) <= 3
    assert all("→" in change.effect and "--set" in change.flag for change in head.changes)
    assert head.chart is not None
    assert {mark.title for mark in head.chart.marks} == {"ttft.p95 <= 1s", f"{head.answer}, the knee"}


def test_a_change_is_shown_with_what_its_simulation_gave(report: Report) -> None:
    changes = {change["key"]: change for change in json.loads(sample.WHAT_IF.read_text())["changes"]}
    table = next(table for table in report.tables() if table.code == "T8")
    assert {row[1] for row in table.rows} == {change["value"] for change in changes.values()}
    gains = [row[4] for row in table.rows if row[4] is not None]
    assert gains == sorted(gains, reverse=True)  # type: ignore[type-var]


def test_every_figure_has_its_run_its_unit_its_words_and_its_numbers(report: Report) -> None:
    keys = [figure.key for figure in report.figures()]
    assert len(keys) == len(set(keys))
    for figure in report.figures():
        assert figure.alt
        assert "{" not in figure.alt + figure.caption
        assert re.search(r"seed|buckets|answer", figure.caption), figure.caption
        assert data_table(figure).rows, figure.key
        if isinstance(figure, Chart):
            assert figure.x.title
            assert figure.y.title


def test_latencies_have_percentiles_beside_their_mean(report: Report) -> None:
    sweep = next(table for table in report.tables() if table.key == "sweep_latencies")
    keys = {column.key for column in sweep.columns}
    for kind in ("ttft", "itl", "tpot", "e2el"):
        assert {f"{kind}_{statistic}" for statistic in ("mean", "p50", "p95", "p99")} <= keys


def test_the_page_fetches_nothing_and_runs_nothing(page: str) -> None:
    found = parsed(page)
    assert found.fetched == []
    assert "script" not in found.tags
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_the_page_has_every_table_and_a_table_behind_every_chart(report: Report, page: str) -> None:
    found = parsed(page)
    assert found.tags.count("table") == len(report.tables()) + len(report.figures())
    assert found.tags.count("figure") == len(report.figures())
    assert len(found.ids) == len(set(found.ids))
    assert page.count('role="img" aria-label="') >= len(report.figures())


def test_formats_have_the_same_content(report: Report, page: str) -> None:
    data = json.loads(sample.rendered()["json"])
    markdown = render_markdown(report, EN)
    assert [section["key"] for section in data["sections"]] == [section.key for section in report.sections]
    for block in (*report.tables(), *report.figures()):
        assert block.title.replace("_", "\\_") in markdown
        assert f'id="{block.key}"' in page
    keys = {block["key"] for section in data["sections"] for block in section["blocks"] if "key" in block}
    assert {figure.key for figure in report.figures()[1:]} <= keys


def test_json_has_numbers_and_no_locale() -> None:
    source = sample.source()
    for lang in LANGUAGES:
        data = json.loads(sample.rendered(lang)["json"])
        sweep = next(
            block
            for section in data["sections"]
            for block in section["blocks"]
            if block.get("key") == "sweep_latencies"
        )
        column = [each["key"] for each in sweep["columns"]].index("ttft_p95")
        assert [row[column] for row in sweep["rows"]] == [p["ttft_ms"]["p95"] for p in source.document["points"]]


def test_the_same_run_gives_the_same_bytes(page: str) -> None:
    again = render_html(build_report([sample.source()], EN, Prices(0.4, "USD")), EN)
    assert again == page


def test_portuguese_is_portuguese() -> None:
    texts = " ".join(parsed(sample.rendered("pt-BR")["html"]).texts)
    assert "usuários" in texts
    assert "Por que não mais" in texts
    for word in (" the ", "Why not more", "seed ", " at "):
        assert word not in texts
    assert re.search(r"\d,\d", texts)


def test_a_tables_shape_is_that_of_its_columns(report: Report) -> None:
    tables: list[Table] = [*report.tables(), *(data_table(figure) for figure in report.figures())]
    for table in tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.key
        assert len({column.key for column in table.columns}) == len(table.columns)


def test_costs_follow_from_the_price() -> None:
    report = build_report([sample.source()], EN, Prices(0.5, "EUR"))
    cost = next(table for table in report.tables() if table.key == "cost")
    values = [row[1].value for row in cost.rows]  # type: ignore[union-attr]
    users = sample.source().document["supported_users"]["value"]
    assert values[0] == 0.5
    assert 0.5 * 730 / users in values
    assert cost.columns[1].unit == "EUR"
    without = build_report([sample.source()], EN)
    assert not any(table.key == "cost" for table in without.tables())


def test_shares_of_the_classes_add_up(report: Report) -> None:
    classes = next(table for table in report.tables() if table.key == "classes")
    for key in ("prompt_share", "output_share", "time_share"):
        index = [column.key for column in classes.columns].index(key)
        assert sum(float(str(row[index])) for row in classes.rows) == pytest.approx(1)


def test_the_phases_of_a_request_follow_each_other(report: Report) -> None:
    worst = next(figure for figure in report.figures() if isinstance(figure, Timeline))
    assert len(worst.labels) == 12
    for spans in worst.spans:
        assert all(before.end == after.start for before, after in pairwise(spans))


def test_without_records_a_report_says_what_is_missing() -> None:
    scenario = open_loop_scenario("ttft.p95 <= 1s")
    source = Source.of_result(scenario, find_capacity(scenario, Served(proportional(7.77))), {})
    text = render_markdown(build_report([source], EN), EN)
    assert "No records of single runs were kept" in text
    assert "No change was simulated" in text
    assert "requests/s" in text


def test_an_interval_that_covers_the_fit_says_so() -> None:
    scenario = open_loop_scenario("ttft.p95 <= 1s")
    server, drawn = Served(proportional(7.7, 8.7)), Served(proportional(7.1, 9.1))
    source = Source.of_result(scenario, find_capacity(scenario, server, drawn=drawn), {})
    for lang, words in (("en", "5 seeds and the uncertainty of the fit"), ("pt-BR", "5 sementes e a incerteza do aj")):
        text = render_markdown(build_report([source], Words.of(lang)), Words.of(lang))
        assert words in text


@pytest.mark.parametrize(
    ("curve", "answer"),
    [
        (proportional(1e6), "at least 1,000\u00a0requests/s"),
        (lambda load, seed: 9.0, "0\u00a0requests/s"),
    ],
)
def test_the_ends_of_a_search_have_their_own_words(curve: object, answer: str) -> None:
    scenario = open_loop_scenario("ttft.p95 <= 1s")
    source = Source.of_result(scenario, find_capacity(scenario, Served(curve)), {})  # type: ignore[arg-type]
    report = build_report([source], EN)
    assert report.headline is not None
    assert report.headline.answer == answer
    render_html(report, EN)


@pytest.mark.parametrize(("rate", "words"), [(5.0, "every objective is met"), (9.0, "not supported")])
def test_a_single_load_is_judged(rate: float, words: str) -> None:
    scenario = override(open_loop_scenario("ttft.p95 <= 1s"), {"workload.request_rate": rate, "search": None})
    source = Source.of_result(scenario, find_capacity(scenario, Served(proportional(7.77))), {})
    report = build_report([source], EN)
    assert report.headline is not None
    assert words in report.headline.answer
    assert "sweep" not in {section.key for section in report.sections}
    render_html(report, EN)


def test_texts_of_the_scenario_are_escaped() -> None:
    source = sample.source()
    source.document["scenario"] = "<b>& |x|"
    report = build_report([source], EN)
    assert "<b>" not in render_html(report, EN)
    assert "\\<b>& \\|x\\|" in render_markdown(report, EN)


def test_a_fitted_profile_shows_its_errors_and_its_coefficients() -> None:
    changes = ["server.profile=qwen2.5-0.5b-l4", "server.model=Qwen/Qwen2.5-0.5B-Instruct", "server.gpu=l4",
               "server.version='0.23'"]  # fmt: skip
    scenario = open_loop_scenario("ttft.p95 <= 1s", changes=changes)
    source = Source.of_result(scenario, find_capacity(scenario, Served(proportional(7.77))), {})
    report = build_report([source], EN)
    assert report.headline is not None
    assert report.headline.calibrated
    assert "fitted to a measured server" in report.headline.calibration
    assert [table.key for table in report.tables() if table.code == "T9"] == ["calibration", "coefficients"]
    errors = next(table for table in report.tables() if table.key == "calibration")
    assert len(errors.rows) == len(source.document["step_times"]["errors"])
    render_html(report, EN)


@pytest.mark.parametrize(
    ("values", "load"),
    [
        ((1.0, 1.0, 1.0, 5.0), 30),
        ((1.0, 3.0, 5.0, 7.0), None),  # straight
        ((1.0, 4.0, 6.0, 7.0), None),  # bends down
        ((7.0, 5.0, 3.0, 1.0), None),  # falls
        ((1.0, None, 1.2, 5.0), 30),
        ((None, None, 1.0, 5.0), None),  # too few
    ],
)
def test_the_knee_is_where_a_curve_bends_upwards_most(values: tuple[float | None, ...], load: float | None) -> None:
    assert knee((10, 20, 30, 40), values) == load


def test_the_first_chart_marks_the_knee_the_answer_and_the_objective(report: Report) -> None:
    assert report.headline is not None
    assert report.headline.chart is not None
    assert [mark.title for mark in report.headline.chart.marks] == ["ttft.p95 <= 1s", "35\u00a0users, the knee"]
    other = next(figure for figure in report.figures() if figure.key == "e2el_by_load")
    assert isinstance(other, Chart)
    assert [mark.title for mark in other.marks] == ["knee 32", "35\u00a0users"]


def test_headroom_at_the_peak_is_that_of_the_load_and_its_plan(report: Report) -> None:
    source = sample.source()
    point = source.point(35)
    assert point is not None
    kv, seats = EN.share(1 - point["kv"]["max"], 2), EN.number(32 - point["running"]["max"])
    assert report.headline is not None
    assert f"Headroom at its peak: {kv} of the KV cache, {seats} of 32 seats." in report.headline.lines
    planned = Source.of_result(
        override(sample.scenario(), {"workload.users": 28}), sample.searched()[0], sample.source()._runs
    )
    headline = build_report([planned], EN).headline
    assert headline is not None
    assert "Planned are 28\u00a0users: 80\u00a0% of that." in headline.lines
