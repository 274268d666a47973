"""A chart is sound XML, stays inside its frame, says in words what it shows, and has its numbers behind it."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.charts.plot import HEIGHT, WIDTH, render_chart
from reports.charts.scale import fit_range, fit_scale, linear_ticks, log_ticks
from reports.charts.timeline import render_timeline
from reports.content import Axis, Band, Chart, Mark, Series, Span, Table, Timeline, data_table
from reports.words import Words

EN = Words.of("en")
VALUES = st.lists(st.floats(min_value=1e-6, max_value=1e9), min_size=1, max_size=30)


def chart(**changes: object) -> Chart:
    made: dict[str, object] = {
        "key": "c", "title": "Latency & <load>", "caption": "85 users, seed 0", "alt": "It \"grows\" & grows.",
        "x": Axis("users"), "y": Axis("TTFT", "s"),
        "series": (Series("p50", "p50", (1.0, 2.0, 4.0), (0.1, None, 0.4)),
                   Series("p95", "p95", (1.0, 2.0, 4.0), (0.2, 0.3, 0.9), 1, dash=1)),
        "marks": (Mark("y", 0.5, "ttft.p95 <= 500ms", "bad"), Mark("x", 2.0, "2 users", "good")),
        "bands": (Band(1.5, 3.0, "95 % interval"),),
    }  # fmt: skip
    return Chart(**(made | changes))  # type: ignore[arg-type]


def coordinates(svg: str) -> list[tuple[float, float]]:
    """Returns every point of every path."""
    found = []
    for path in re.findall(r' d="([^"]*)"', svg):
        found += [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]
    return found


def test_a_chart_is_sound_xml_and_inside_its_frame() -> None:
    svg = render_chart(chart(), EN)
    ElementTree.fromstring(svg)
    points = coordinates(svg)
    assert len(points) >= 5  # of the two series
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)


def test_a_chart_says_in_words_what_it_shows() -> None:
    root = ElementTree.fromstring(render_chart(chart(), EN))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == 'It "grows" & grows.'
    texts = [element.text for element in root.iter("text")]
    assert {"users", "TTFT (s)", "ttft.p95 <= 500ms", "2 users"} <= set(texts)


def test_series_differ_by_more_than_colour() -> None:
    svg = render_chart(chart(), EN)
    assert "line s0 d0" in svg
    assert "line s1 d1" in svg
    assert "<circle" in svg  # the first series' markers
    assert "<rect" in svg  # the second's


@pytest.mark.parametrize("style", ["line", "step", "dots", "bars"])
def test_every_style_draws_something(style: str) -> None:
    series = (Series("s", "s", (1.0, 2.0, 3.0), (1.0, 5.0, 2.0), style=style),)  # type: ignore[arg-type]
    svg = render_chart(chart(series=series, marks=(), bands=()), EN)
    ElementTree.fromstring(svg)
    assert re.search(r'class="(line|dot|fill)', svg)


def test_a_stack_reaches_the_sum_of_its_layers() -> None:
    layers = (Series("a", "a", (0.0, 1.0), (1.0, 2.0)), Series("b", "b", (0.0, 1.0), (3.0, 4.0), 1))
    svg = render_chart(chart(series=layers, stacked=True, marks=(), bands=(), y=Axis("tokens")), EN)
    top = min(y for _, y in coordinates(svg))
    scale = fit_scale([4.0, 6.0], "linear", HEIGHT - 42, 16)
    assert top == pytest.approx(scale(6.0), abs=0.1)


def test_labels_of_close_marks_do_not_overlap() -> None:
    marks = (Mark("x", 2.0, "mean 1.2 s"), Mark("x", 2.05, "p99 1.3 s", "warn"))
    root = ElementTree.fromstring(render_chart(chart(marks=marks), EN))
    rows = {
        element.text: element.attrib["y"]
        for element in root.iter("text")
        if element.text in ("mean 1.2 s", "p99 1.3 s")
    }
    assert rows["mean 1.2 s"] != rows["p99 1.3 s"]


def test_the_table_behind_has_every_number() -> None:
    table = data_table(chart())
    assert [column.key for column in table.columns] == ["x", "p50", "p95"]
    assert table.rows == ((1.0, 0.1, 0.2), (2.0, None, 0.3), (4.0, 0.4, 0.9))
    apart = data_table(chart(series=(Series("a", "A", (1.0,), (2.0,)), Series("b", "B", (3.0,), (4.0,)))))
    assert apart.rows == (("A", 1.0, 2.0), ("B", 3.0, 4.0))


def test_a_timeline_has_a_row_a_request_and_a_colour_a_phase() -> None:
    spans = ((Span(0.0, 1.0, 1), Span(1.0, 3.0, 3)), (Span(0.0, 2.0, 2),))
    made = Timeline("t", "Worst", "c", "alt", Axis("time", "s"), ("way", "queue", "read", "write"), ("#1", "#2"), spans,
                    Table("d", "", (), ()))  # fmt: skip
    root = ElementTree.fromstring(render_timeline(made, EN))
    bars = list(root.iter("rect"))
    assert [bar.attrib["class"] for bar in bars] == ["span f1", "span f3", "span f2"]
    assert float(bars[1].attrib["x"]) == pytest.approx(
        float(bars[0].attrib["x"]) + float(bars[0].attrib["width"]), abs=0.2
    )


@given(low=st.floats(min_value=-1e6, max_value=1e6), width=st.floats(min_value=1e-3, max_value=1e7))
def test_linear_ticks_are_round_even_and_few(low: float, width: float) -> None:
    ticks = linear_ticks(low, low + width, 6)
    assert len(ticks) <= 8
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in ticks)


@given(low=st.floats(min_value=1e-6, max_value=1e3), ratio=st.floats(min_value=2, max_value=1e6))
def test_log_ticks_are_inside_and_few(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio, 6)
    assert len(ticks) <= 8
    assert ticks == sorted(ticks)
    assert all(low * 0.99 <= tick <= low * ratio * 1.01 for tick in ticks)


@given(values=VALUES, kind=st.sampled_from(["linear", "log"]))
def test_a_scale_keeps_the_order_and_the_frame(values: list[float], kind: str) -> None:
    for scale in (fit_scale(values, kind, 200.0, 10.0), fit_range(values, kind, 200.0, 10.0)):  # type: ignore[arg-type]
        places = [scale(value) for value in sorted(values)]
        assert all(10.0 <= place <= 200.0 for place in places)
        assert all(after <= before + 1e-9 for before, after in pairwise(places))
        assert not any(math.isnan(place) for place in places)
