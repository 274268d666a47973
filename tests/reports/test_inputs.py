"""Sweeps, spot checks and snapshots of a real server are reported alone, and beside runs."""

import json
from functools import cache
from pathlib import Path

import pytest

from reports.check_source import CheckSource
from reports.content import Report, data_table
from reports.html import render_html
from reports.inputs import read_inputs
from reports.markdown import render_markdown
from reports.model import Beside, build_report
from reports.snapshots import parse_metrics
from reports.sweep_source import SweepSource
from reports.vllm_metrics import vllm_metrics
from reports.words import LANGUAGES, Words
from sim.errors import UserError
from tests.reports import sample
from tests.reports.kept import make_check, make_sweep

EN = Words.of("en")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("swept"))


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_check(tmp_path_factory.mktemp("checked"))


@cache
def page_of_a_real_server() -> str:
    source = sample.source()
    return vllm_metrics(source.chosen_run(source.shown_load, None), source.document).text(10**12)


def table(report: Report, key: str) -> dict[str, dict[str, object]]:
    """A table's rows by their first cell, as column -> value."""
    found = next(each for each in report.tables() if each.key == key)
    keys = [column.key for column in found.columns]
    rows = [[getattr(cell, "value", cell) for cell in row] for row in found.rows]
    return {str(row[0]): dict(zip(keys, row, strict=True)) for row in rows}


def test_a_sweep_says_what_each_configuration_supports(swept: Path) -> None:
    source = SweepSource.read(swept)
    report = build_report([], EN, beside=Beside(sweeps=(source,)))
    rows = table(report, "sweep_configurations")
    best = source.configurations()[0]
    assert best.name == "max_num_seqs=32"
    assert best.holds_at is not None
    assert rows["32"]["supported"] == best.holds_at["load"] > rows["2"]["supported"]  # type: ignore[operator]
    assert rows["2"]["binds"] == "seats (max_num_seqs)"
    assert report.headline is not None
    assert report.headline.answer == EN.load(best.holds_at["load"], "users")
    assert "With max_num_seqs=32." in report.headline.lines
    by_bound = [rows["32"][f"ttft_p95_{bound}s"] for bound in ("0.2", "0.5", "1", "2")]
    assert by_bound == sorted(by_bound, key=lambda load: float(str(load)))


def test_every_point_of_a_sweep_is_there_with_its_verdict(swept: Path) -> None:
    source = SweepSource.read(swept)
    report = build_report([], EN, beside=Beside(sweeps=(source,)))
    points = next(each for each in report.tables() if each.key == "sweep_points")
    assert len(points.rows) == len(source.points) == 9
    verdicts = [str(row[-1]) for row in points.rows]
    assert "met" in verdicts
    assert any(verdict.startswith("broken: ttft.p95") for verdict in verdicts)


def test_the_charts_of_a_sweep_are_those_of_its_points(swept: Path) -> None:
    source = SweepSource.read(swept)
    report = build_report([], EN, beside=Beside(sweeps=(source,)))
    figures = {figure.key: figure for figure in report.figures()}
    assert len(figures) == len(report.figures())  # a page needs its ids
    rows = data_table(figures["sweep_ttft"]).rows
    named = {(name, load): value for name, load, value in rows} if len(rows[0]) == 3 else {}
    point = source.points[0]
    shown = named[(source.configurations()[0].name, 8.0)] if named else rows[0][1]
    assert shown == pytest.approx(point["ttft_p95_ms"] / 1000)
    holds = sum(point["holds"] is True for point in source.points)
    assert sum(row[0] == "met" for row in data_table(figures["sweep_trade"]).rows) == holds


def test_a_sweep_without_loads_draws_its_value(tmp_path: Path, swept: Path) -> None:
    document = json.loads((swept / "sweep.json").read_text())
    points = [point for point in document["points"] if point["users"] == 24 and point["status"] == "ok"]
    document |= {"points": points, "vary": {"server.flags.max_num_seqs": [32, 2, 4096]}}
    (tmp_path / "sweep.json").write_text(json.dumps(document))
    report = build_report([], EN, beside=Beside(sweeps=(SweepSource.read(tmp_path),)))
    assert report.headline is not None
    assert report.headline.answer == f"{sum(point['holds'] for point in points)} of {len(points)} points hold"
    assert any("by max_num_seqs" in figure.title for figure in report.figures())


def test_a_spot_check_shows_the_real_server_beside_its_simulation(checked: Path) -> None:
    source = CheckSource.read(checked)
    report = build_report([], EN, beside=Beside(checks=(source,)))
    rows = table(report, "check_errors")
    ttft = rows["TTFT p50 (ms)"]
    assert ttft["simulated"] == pytest.approx(1.06 * 59, rel=0.01)
    assert (ttft["live_1"], ttft["live_2"]) == pytest.approx((0.99 * 59, 1.01 * 59), rel=0.01)
    assert ttft["error"] == "+6\u00a0%"
    assert ttft["spread"] == pytest.approx(0.02, rel=0.02)
    assert rows["preemptions"]["live_2"] == 4
    assert report.headline is not None
    assert report.headline.answer == "off by 6\u00a0% (median)"
    overlay = next(figure for figure in report.figures() if figure.key == "check_e2el")
    assert overlay.code == "F8"


def test_a_check_that_fails_says_why(tmp_path: Path) -> None:
    report = build_report([], EN, beside=Beside(checks=(CheckSource.read(make_check(tmp_path, 1.5)),)))
    assert report.headline is not None
    assert report.headline.tone == "bad"
    assert "not close enough: the median error of the latencies is 50\u00a0%" in report.headline.calibration


def test_beside_a_run_a_check_tells_its_error_on_the_first_screen(checked: Path, swept: Path) -> None:
    beside = Beside(parse_metrics(page_of_a_real_server()), (SweepSource.read(swept),), (CheckSource.read(checked),))
    report = build_report([sample.source()], EN, beside=beside)
    assert report.headline is not None
    assert "A spot check against the live server was off by 6\u00a0%" in report.headline.calibration
    keys = [section.key for section in report.sections]
    assert keys[-4:] == ["measured", "sweep", "check", "provenance"]
    ids = [figure.key for figure in report.figures()] + [each.key for each in report.tables()]
    assert len(ids) == len(set(ids))


def test_a_real_server_alone_is_a_report(tmp_path: Path) -> None:
    (tmp_path / "metrics.txt").write_text(page_of_a_real_server())
    inputs = read_inputs([tmp_path / "metrics.txt"], None)
    report = build_report(inputs.sources, EN, beside=inputs.beside)
    source = sample.source()
    run = source.chosen_run(source.shown_load, None)
    mean_ms = sum(each.first_token_ns - each.sent_ns for each in run.requests) / len(run.requests) / 1e6
    assert table(report, "measured")["TTFT mean (ms)"]["measured"] == pytest.approx(mean_ms, rel=0.02)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_report_is_whole_in_both_languages(swept: Path, checked: Path, lang: str) -> None:
    words, measured = Words.of(lang), parse_metrics(page_of_a_real_server())
    for beside in (Beside(sweeps=(SweepSource.read(swept),)), Beside(checks=(CheckSource.read(checked),)),
                   Beside(measured=measured)):  # fmt: skip
        report = build_report([], words, beside=beside)
        for text in (render_html(report, words), render_markdown(report, words)):
            assert "None" not in text
            assert "nan" not in text
        assert not any("{" in section.title for section in report.sections)


def test_inputs_are_told_apart(swept: Path, checked: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.txt").write_text(page_of_a_real_server())
    inputs = read_inputs([swept, checked, checked / "spot-check.json", tmp_path / "metrics.txt"], None)
    assert inputs.sources == ()
    assert [each.key for each in inputs.beside.sweeps] == ["sweep_1"]
    assert [each.key for each in inputs.beside.checks] == ["check_1", "check_2"]
    assert inputs.beside.measured is not None


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("sweep.json", '{"format": 99}', "sweep.json: format 99; known: 1"),
        ("sweep.json", '{"format": 1, "points": []}', "sweep.json: the sweep has no point"),
        ("sweep.json", "[", "sweep.json: not valid JSON"),
        ("spot-check.json", "{}", "spot-check.json: not a spot check of this version"),
        ("other.txt", "", "no result.json, sweep.json or spot-check.json in it"),
    ],
)
def test_what_is_none_of_them_is_said_in_one_line(tmp_path: Path, file: str, text: str, said: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError) as caught:
        read_inputs([tmp_path], None)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scenario_belongs_to_one_run(swept: Path) -> None:
    with pytest.raises(UserError, match="--scenario: belongs to one run; got 0 runs"):
        read_inputs([swept], sample.scenario())
