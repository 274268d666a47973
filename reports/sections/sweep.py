"""Every load that was tried: tables T5 and T6, latency, goodput and throughput against load (F1, F2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from reports.content import Axis, Band, Block, Cell, Chart, Column, Kind, Mark, Section, Series, Table, Value
from reports.context import Context
from reports.document import Document

SLO_COLUMNS_S = (0.2, 0.5, 1.0, 2.0)
"""The bounds on TTFT that planners ask about."""

_QUANTILES = (("p50", 2, 0), ("p95", 0, 1), ("p99", 1, 2))  # key, colour, dash
_IN_SECONDS = ("ttft", "e2el", "queue")
_BEND = 0.1  # of the chart: a curve that lies less below its chord is as good as straight
_WIDE = 20  # a range this wide is shown on a logarithmic axis


def sweep_section(context: Context, shown: str) -> Section | None:
    """Builds the section on the loads tried; None for a single load. The latency `shown` stands on the first screen."""
    if len(context.document["points"]) < 2:
        return None
    words = context.words
    kinds = [kind for kind in ("ttft", "itl", "e2el", "tpot", "queue") if kind != shown]
    charts = (latency_chart(context, kind) for kind in kinds[:3])
    blocks: list[Block] = [chart for chart in charts if chart is not None]
    blocks += [goodput_chart(context), throughput_chart(context), users_by_slo(context)]
    blocks += sweep_tables(context)
    return Section("sweep", words("section.sweep"), tuple(blocks))


def latency_chart(context: Context, kind: str) -> Chart | None:
    """Draws p50, p95 and p99 of a latency against the load, with the answer and the objectives marked; F1."""
    words, points = context.words, _loaded(context)
    if len(points) < 2:
        return None
    scale = 1000.0 if kind in _IN_SECONDS else 1.0
    loads = tuple(point["load"] for point in points)
    series = [
        Series(q, words("word.percentile", q=q[1:]), loads, _values(points, kind, q, scale), colour, dash=dash)
        for q, colour, dash in _QUANTILES
    ]
    marks = _objective_marks(context, kind, scale)
    bend = knee(loads, _values(points, kind, "p95", scale))
    heights = [y for each in series for y in each.y if y is not None and y > 0] + [mark.value for mark in marks]
    return Chart(
        key=f"{kind}_by_load",
        title=words("chart.latency_by_load.title", latency=words(f"latency.{kind}")),
        caption=context.means_caption(),
        alt=_latency_alt(context, kind, points),
        x=_load_axis(context, loads),
        y=Axis(words(f"latency.{kind}"), "s" if scale > 1 else "ms", _scale_of(heights)),
        series=tuple(series),
        marks=(*marks, *_knee_mark(context, bend), *_answer_mark(context, bend)),
        bands=_interval_band(context),
        code="F1",
    )


def knee(loads: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Returns the load at which a curve bends upwards most; None where it does not bend.

    That is where it lies furthest below the straight line between its ends, both axes scaled to 1 (Satopaa et al. 2011,
    "Finding a kneedle in a haystack", without smoothing: there are few points).
    """
    known = [(load, value) for load, value in zip(loads, values, strict=True) if value is not None]
    if len(known) < 3 or known[-1][1] <= known[0][1]:
        return None
    (first, low), (last, high) = known[0], known[-1]
    depths = [((load - first) / (last - first) - (value - low) / (high - low), load) for load, value in known]
    depth, load = max(depths)
    return load if depth >= _BEND else None


def goodput_chart(context: Context) -> Chart:
    """Draws the share of requests that meet every bound against the load; F2."""
    words, points = context.words, _loaded(context)
    loads = tuple(point["load"] for point in points)
    shares = tuple(point["goodput"] for point in points)
    last = shares[-1] if shares and shares[-1] is not None else 0.0
    return Chart(
        key="goodput_by_load",
        title=words("chart.goodput.title"),
        caption=context.means_caption(),
        alt=words("chart.goodput.alt", load=context.load(loads[-1]), share=words.share(last)),
        x=_load_axis(context, loads),
        y=Axis(words("column.goodput"), kind="share", at_least=1.0),
        series=(Series("goodput", words("column.goodput"), loads, shares, 0),),
        marks=_answer_mark(context),
        bands=_interval_band(context),
        code="F2",
    )


def throughput_chart(context: Context) -> Chart:
    """Draws output tokens per second against the load."""
    words, points = context.words, _loaded(context)
    loads = tuple(point["load"] for point in points)
    rates = tuple(point["throughput"]["output_tokens_per_s"] for point in points)
    most = max((rate for rate in rates if rate is not None), default=0.0)
    return Chart(
        key="throughput_by_load",
        title=words("chart.throughput.title"),
        caption=context.means_caption(),
        alt=words("chart.throughput.alt", rate=most),
        x=_load_axis(context, loads),
        y=Axis(words("column.output_tokens"), "tok/s"),
        series=(Series("output_tokens_per_s", words("column.output_tokens"), loads, rates, 2),),
        marks=_answer_mark(context),
        bands=_interval_band(context),
        code="F1",
    )


def users_by_slo(context: Context) -> Table:
    """Returns the load that each bound on the TTFT would allow, interpolated between the loads tried; T6."""
    words = context.words
    rows: list[tuple[Value, ...]] = []
    for bound in SLO_COLUMNS_S:
        crossing = slo_crossing(_loaded(context), bound)
        rows.append((words("table.slo.bound", bound=words.duration(bound)), *crossing))
    columns = (
        Column("bound", words("table.slo.bound_title"), "text"),
        Column("holds_at", words("table.slo.holds"), "number", context.load_title),
        Column("breaks_at", words("table.slo.breaks"), "number", context.load_title),
        Column("estimate", words("table.slo.estimate"), "number", context.load_title),
    )
    return Table("users_by_slo", words("table.slo.title"), columns, tuple(rows), words("table.slo.note"), "T6")


def supported_within(points: list[Document], bound_s: float) -> Value | Cell:
    """Returns the load up to which the TTFT p95 stays within a bound; where every load does, it is at least the last.

    None where already the first does not.
    """
    holds, _, between = slo_crossing(points, bound_s)
    if between is not None or holds is None:
        return between
    return Cell(holds, "at_least")


def slo_crossing(points: list[Document], bound_s: float) -> tuple[float | None, float | None, float | None]:
    """Finds where the TTFT p95 first exceeds a bound: the last load that holds, the first that breaks, and between.

    The value between is interpolated as the search does it: the logarithm of the measure, linear in the load.
    """
    values = [(point["load"], point["ttft_ms"]["p95"]) for point in points if point["ttft_ms"]["p95"] is not None]
    bound = 1000 * bound_s
    if not values:
        return None, None, None
    if values[0][1] > bound:
        return None, values[0][0], None
    for (low, below), (high, beyond) in pairwise(values):
        if beyond > bound:
            share = math.log(bound / below) / math.log(beyond / below) if 0 < below < beyond else 0.5
            return low, high, low + share * (high - low)
    return values[-1][0], None, None


_Measure = tuple[str, tuple[str, ...], Kind, str]

_SERVER: tuple[_Measure, ...] = (
    ("offered", ("throughput", "offered_requests_per_s"), "number", "req/s"),
    ("achieved", ("throughput", "requests_per_s"), "number", "req/s"),
    ("output_tokens", ("throughput", "output_tokens_per_s"), "number", "tok/s"),
    ("total_tokens", ("throughput", "total_tokens_per_s"), "number", "tok/s"),
    ("running", ("running", "mean"), "number", ""),
    ("waiting", ("waiting", "mean"), "number", ""),
    ("kv_mean", ("kv", "mean"), "share", ""),
    ("kv_max", ("kv", "max"), "share", ""),
    ("preemptions", ("preemptions",), "number", ""),
    ("hit_rate", ("prefix_hit_rate",), "share", ""),
    ("rejected", ("errors", "rejected"), "number", ""),
    ("errors", ("errors", "share"), "share", ""),
    ("goodput", ("goodput",), "share", ""),
)
_LATENCIES: tuple[_Measure, ...] = (
    *(
        (f"{kind}_{q}", (f"{kind}_ms", q), "number", "ms")
        for kind in ("ttft", "itl", "tpot", "e2el")
        for q in ("mean", "p50", "p95", "p99")
    ),
    ("queue_mean", ("queue_ms", "mean"), "number", "ms"),
    ("queue_p99", ("queue_ms", "p99"), "number", "ms"),
)


def sweep_tables(context: Context) -> list[Table]:
    """Returns one row a load tried, twice: throughput and the server, then the latencies; T5."""
    words = context.words
    verdicts = [(len(point["seeds"]), verdict(context, point)) for point in context.document["points"]]
    ends = (Column("seeds", words("column.seeds"), "count"), Column("verdict", words("column.verdict"), "text"))
    return [
        _sweep_table(context, "sweep", _SERVER, ends, verdicts),
        _sweep_table(context, "sweep_latencies", _LATENCIES, (), [()] * len(verdicts)),
    ]


def _sweep_table(
    context: Context,
    key: str,
    measures: tuple[_Measure, ...],
    ends: tuple[Column, ...],
    last: Sequence[tuple[Value, ...]],
) -> Table:
    words = context.words
    columns = [Column("load", context.load_title)]
    columns += [Column(name, _column_title(context, name), kind, unit) for name, _, kind, unit in measures]
    rows = [
        (
            point["load"],
            *(_reach(point, path, 0 if name == "rejected" else None) for name, path, _, _ in measures),
            *more,
        )
        for point, more in zip(context.document["points"], last, strict=True)
    ]
    title, note = words(f"table.{key}.title"), words("table.sweep.note")
    return Table(key, title, (*columns, *ends), tuple(rows), note, "T5")


def verdict(context: Context, point: Document) -> str:
    """Says whether a load is supported, and what breaks where it is not."""
    words = context.words
    broken = [each["name"] for each in point["objectives"] if each["met"] is False]
    if broken:
        return words("verdict.broken", names=", ".join(broken))
    if point["overloaded"]:
        return words("verdict.overloaded")
    return words("verdict.met") if point["objectives"] else "–"


def _column_title(context: Context, key: str) -> str:
    words = context.words
    kind, _, statistic = key.partition("_")
    if statistic and words.has(f"short.{kind}") and (statistic == "mean" or statistic[0] == "p"):
        return f"{words(f'short.{kind}')} {words('word.mean') if statistic == 'mean' else statistic}"
    return words(f"column.{key}")


def _reach(point: Document, path: tuple[str, ...], default: Value) -> Value:
    value: Any = point
    for key in path:
        value = value.get(key, default)
    result: Value = value
    return result


def _loaded(context: Context) -> list[Document]:
    return [point for point in context.document["points"] if point["load"] is not None]


def _values(points: list[Document], kind: str, statistic: str, scale: float) -> tuple[float | None, ...]:
    values = [point[f"{kind}_ms"][statistic] for point in points]
    return tuple(None if value is None else value / scale for value in values)


def _load_axis(context: Context, loads: tuple[float, ...]) -> Axis:
    return Axis(context.load_title, "", _scale_of(list(loads)))


def _scale_of(values: list[float]) -> Literal["linear", "log"]:
    return "log" if values and min(values) > 0 and max(values) > _WIDE * min(values) else "linear"


def _objective_marks(context: Context, kind: str, scale: float) -> tuple[Mark, ...]:
    """Returns a line for each objective on this latency; bounds are in seconds, the axis in seconds or milliseconds."""
    return tuple(
        Mark("y", 1000 * each.value / scale, each.text, "bad")
        for each in context.source.objectives
        if each.metric == kind
    )


def _answer_mark(context: Context, bend: float | None = None) -> tuple[Mark, ...]:
    value = context.document["supported_users"]["value"]
    if not value:
        return ()
    key = "chart.answer_and_knee" if value == bend else "chart.answer"
    return (Mark("x", value, context.words(key, load=context.load(value)), "good"),)


def _knee_mark(context: Context, load: float | None) -> tuple[Mark, ...]:
    if load is None or load == context.document["supported_users"]["value"]:
        return ()
    return (Mark("x", load, context.words("chart.knee", load=context.words.number(load))),)


def _interval_band(context: Context) -> tuple[Band, ...]:
    bounds = context.document["supported_users"]
    if not bounds["low"] or bounds["high"] is None:
        return ()
    return (Band(bounds["low"], bounds["high"], context.words("chart.interval")),)


def _latency_alt(context: Context, kind: str, points: list[Document]) -> str:
    words = context.words
    first, last = points[0], points[-1]
    return words(
        "chart.latency_by_load.alt",
        latency=words(f"latency.{kind}"),
        first=context.load(first["load"]),
        low=words.milliseconds(first[f"{kind}_ms"]["p95"]),
        last=context.load(last["load"]),
        high=words.milliseconds(last[f"{kind}_ms"]["p95"]),
    )
