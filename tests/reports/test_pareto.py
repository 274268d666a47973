"""The result of a flag search, rendered: the numbers stay as they are, and what cannot be drawn is left out."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from reports.charts.plot import render_chart
from reports.content import Chart, Table
from reports.html import render_html
from reports.pareto import search_document
from reports.pareto_page import search_report
from reports.pareto_terminal import render_search
from reports.words import LANGUAGES, Words
from tests.sim.search.made import Served, made_search, scenario, trade_off


@cache
def document(*, metrics: tuple[str, str] = ("ttft.p95,tpot.p95,gpus", "throughput"), objective: str = "60s") -> Any:
    """A search over made servers."""
    base = scenario(objectives=f"['ttft.p95 <= {objective}']")
    vary = ["max_num_seqs=1:128:log", "max_num_batched_tokens=256:8192:log", "gpu_memory_utilization=0.1,0.9"]
    made = made_search("sqlite:///:memory:", 16, base=base, vary=vary, served=Served(_cached), metrics=metrics)
    made.search.run()
    return search_document(
        base, made.search.space, made.search.judge, made.trials, study="made", storage="s.db", interrupted=False,
        run_command=lambda parameters: f"headcount run {len(parameters)}",
    )  # fmt: skip


def _cached(served: Any) -> tuple[float, float]:
    flags = served.server.flags.model_copy(update={"enable_prefix_caching": True})
    return trade_off(served.model_copy(update={"server": served.server.model_copy(update={"flags": flags})}))


def test_the_document_is_json_and_its_front_is_sorted_without_equals() -> None:
    found = document()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    rows = [tuple(row["measures"].values()) for row in found["front"]]
    assert len(set(rows)) == len(rows) > 2
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert found["num_simulated"] == len(found["trials"]) == 16
    assert found["num_refused"] == sum(each["state"] == "refused" for each in found["failures"]) > 0


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_has_a_chart_for_each_further_measure_and_every_command(lang: str) -> None:
    found, words = document(), Words.of(lang)
    report = search_report(found, words)
    charts = [block for section in report.sections for block in section.blocks if isinstance(block, Chart)]
    assert [chart.y.title for chart in charts] == ["tpot.p95", "gpus", "throughput"]
    assert all(len(series.x) == len(series.y) for chart in charts for series in chart.series)
    assert all(render_chart(chart, words).startswith("<svg") for chart in charts)
    tables = {table.key: table for table in report.tables()}
    assert [row[1] for row in tables["commands"].rows] == [row["serve"] for row in found["front"]]
    assert len(tables["failures"].rows) == found["num_refused"]
    assert "<script" not in render_html(report, words)


def test_short_latencies_are_in_milliseconds_and_long_ones_in_seconds() -> None:
    found = document()
    (front,) = [each for each in search_report(found, Words.of("en")).tables() if each.key == "front"]
    units = {column.key: column.unit for column in front.columns}
    assert units["tpot.p95"] == "ms"
    assert _column(front, "tpot.p95") == [1000 * row["measures"]["tpot.p95"] for row in found["front"]]
    longest = max(row["measures"]["ttft.p95"] for row in found["front"])
    assert units["ttft.p95"] == ("s" if longest >= 1 else "ms")


def test_without_anything_allowed_the_page_and_the_text_say_so() -> None:
    found = document(objective="1ms")
    assert found["front"] == []
    report = search_report(found, Words.of("en"))
    assert [section.key for section in report.sections] == ["front", "trials"]
    text = render_search(found)
    assert "none meets what is required" in text
    assert "None is feasible; these break least" in text
    assert "vllm serve" not in text


def test_warnings_name_those_that_they_are_about() -> None:
    found = document() | {"warnings": ["of all", "of one"]}
    found["front"] = [row | {"warnings": ["of all"]} for row in found["front"]]
    found["front"][1]["warnings"] = ["of all", "of one"]
    assert render_search(found).endswith("Warnings\n  of all\n  b: of one\n")


def test_one_measure_alone_has_no_plot() -> None:
    found = document(metrics=("ttft.p95", ""))
    assert "letters: the front" not in render_search(found)
    assert not search_report(found, Words.of("en")).figures()


def test_the_letters_of_the_plot_are_those_of_the_table() -> None:
    found = document(metrics=("ttft.p95,tpot.p95", ""))
    lines = render_search(found).splitlines()
    start = next(place for place, line in enumerate(lines) if "letters: the front" in line)
    drawn = {sign for line in lines[start + 1 : start + 15] for sign in line.split("|", 1)[1] if sign.isalpha()}
    assert drawn == set("abcdefghijklmnopqrstuvwxyz"[: len(found["front"])])


def _column(table: Table, key: str) -> list[Any]:
    place = [column.key for column in table.columns].index(key)
    return [row[place] for row in table.rows]
