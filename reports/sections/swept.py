"""A sweep: what each configuration supports (T6), every point (T5), latency against load and throughput (F1, F7)."""

from __future__ import annotations

from collections.abc import Sequence

from reports.content import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Headline,
    Kind,
    Mark,
    Paragraph,
    Section,
    Series,
    Table,
    Value,
)
from reports.sections.sweep import SLO_COLUMNS_S, supported_within
from reports.sweep_source import Configuration, Row, SweepSource, short_key
from reports.words import Words
from sim.scenario.model import Objective
from sim.sweep.axes import as_text

_MOST_LINES = 6  # that a chart can tell apart
_WIDE = 20
_SCALES = {"ttft": (1000.0, "s"), "itl": (1.0, "ms")}

_Numbers = tuple[tuple[str, Kind, str], ...]
_SERVER: _Numbers = (
    ("offered_requests_per_s", "number", "req/s"), ("requests_per_s", "number", "req/s"),
    ("output_tokens_per_s", "number", "tok/s"), ("running_mean", "number", ""), ("waiting_mean", "number", ""),
    ("kv_mean", "share", ""), ("kv_max", "share", ""), ("preemptions", "number", ""),
    ("prefix_hit_share", "share", ""), ("error_share", "share", ""), ("goodput_share", "share", ""),
)  # fmt: skip
_LATENCIES: _Numbers = (
    *((f"{kind}_{q}_ms", "number", "ms") for kind in ("ttft", "itl", "e2el") for q in ("mean", "p50", "p95", "p99")),
    ("queue_mean_ms", "number", "ms"), ("queue_p99_ms", "number", "ms"),
)  # fmt: skip
_TITLES = {"offered_requests_per_s": "offered", "requests_per_s": "achieved", "output_tokens_per_s": "output_tokens",
           "running_mean": "running", "waiting_mean": "waiting", "prefix_hit_share": "hit_rate",
           "error_share": "errors", "goodput_share": "goodput"}  # fmt: skip


def swept_section(sweep: SweepSource, words: Words, shown: Chart | None = None) -> Section:
    """Builds the section on a sweep; the chart that is `shown` on the first screen is left out."""
    axes = ", ".join(f"{key} ({len(values)})" for key, values in sweep.document["vary"].items())
    text = words("swept.which", axes=axes, points=len(sweep.points), seeds=len(sweep.document["seeds"]))
    blocks: list[Block] = [Paragraph(text)]
    if not sweep.document["complete"]:
        blocks.append(Paragraph(words("swept.incomplete"), "warn"))
    if not sweep.calibrated:
        blocks.append(Paragraph(words("calibration.analytical"), "warn"))
    if sweep.load_key is not None:
        blocks.append(configuration_table(sweep, words))
        blocks += [load_chart(sweep, words, kind) for kind in _SCALES]
    elif len(sweep.other_keys) == 1:
        blocks += [axis_chart(sweep, words, kind) for kind in _SCALES if _is_numeric(sweep)]
    blocks.append(trade_chart(sweep, words))
    blocks += point_tables(sweep, words)
    blocks += [Paragraph(words.said(text), "warn") for text in sweep.document["warnings"]]
    kept = (block for block in blocks if shown is None or not isinstance(block, Chart) or block.key != shown.key)
    return Section(sweep.key, words("section.swept", name=sweep.name), tuple(kept))


def swept_headline(sweep: SweepSource, words: Words) -> Headline:
    """Builds the first screen of a report on a sweep alone: the configuration that supports most."""
    ranked = _ranked(sweep)
    best = ranked[0]
    lines = [words("swept.best", name=best.name)] if best.name else []
    binds = []
    if sweep.load_key is None:
        holding = [point for point in sweep.points if point["holds"]]
        answer = words("swept.points_hold", holding=len(holding), points=len(sweep.points))
    else:
        answer = words.load(_held(best), sweep.unit)
        broken = best.breaks_at
        if broken is not None:
            at = words.load(broken["load"], sweep.unit)
            binds.append(words("swept.breaks", load=at, objective=broken["binding_objective"] or "–"))
        if broken is not None and broken["binding_resource"]:
            binds.append(words("swept.resource", resource=words(f"resource.{broken['binding_resource']}.name")))
        lines += [
            words("swept.next_best", name=each.name or "–", load=words.load(_held(each), sweep.unit))
            for each in ranked[1:3]
        ]
    good = bool(_held(best)) if sweep.load_key is not None else any(point["holds"] for point in sweep.points)
    return Headline(
        answer=answer,
        tone="good" if good else "bad",
        lines=(*lines, words("swept.no_interval")),
        binds=tuple(binds),
        calibration=words("swept.calibrated" if sweep.calibrated else "calibration.analytical"),
        calibrated=sweep.calibrated,
        limits=(),
        changes=(),
        changes_note="",
        facts=(),
        chart=load_chart(sweep, words, "ttft") if sweep.load_key is not None else trade_chart(sweep, words),
    )


def _ranked(sweep: SweepSource) -> list[Configuration]:
    """Returns the configurations, those that support most first; of equal ones, those that are slowed down least."""

    def worth(each: Configuration) -> tuple[float, float]:
        broken = each.breaks_at
        return -_held(each), (broken.get("ttft_p95_ms") or 0.0) if broken is not None else 0.0

    return sorted(sweep.configurations(), key=worth)


def _held(configuration: Configuration) -> float:
    point = configuration.holds_at
    return float(point["load"] or 0.0) if point is not None else 0.0


def configuration_table(sweep: SweepSource, words: Words) -> Table:
    """Returns one row a configuration: what it supports, what breaks next, and the load by bound on the TTFT; T6."""
    rows: list[tuple[Value | Cell, ...]] = []
    for each in _ranked(sweep):
        broken, holding = each.breaks_at, each.holds_at
        resource = broken["binding_resource"] if broken is not None else None
        rows.append((
            *(Cell(as_text(value), "flag") for value in each.values.values()),
            None if each.failed else _held(each), broken["load"] if broken is not None else None,
            each.failed or (words(f"resource.{resource}.name") if resource else "–"),
            holding["output_tokens_per_s"] if holding is not None else None,
            *(supported_within(_as_points(each.points), bound) for bound in SLO_COLUMNS_S),
        ))  # fmt: skip
    unit = words(f"load.{sweep.unit}.title")
    columns = [Column(key, short_key(key), "flag") for key in sweep.other_keys]
    columns += [
        Column("supported", words("column.supported"), "number", unit),
        Column("breaks_at", words("table.slo.breaks"), "number", unit),
        Column("binds", words("column.binds"), "text"),
        Column("output_tokens", words("column.output_tokens"), "number", "tok/s"),
        *(Column(f"ttft_p95_{bound:g}s", words("table.slo.bound", bound=words.duration(bound)), "number", unit)
          for bound in SLO_COLUMNS_S),
    ]  # fmt: skip
    return Table(
        f"{sweep.key}_configurations",
        words("swept.configurations"),
        tuple(columns),
        tuple(rows),
        words("table.slo.note"),
        "T6",
        True,
    )


def _as_points(rows: tuple[Row, ...]) -> list[Row]:
    made = [row for row in rows if row["status"] == "ok" and row["load"] is not None]
    return [{"load": row["load"], "ttft_ms": {"p95": row["ttft_p95_ms"]}} for row in made]


def load_chart(sweep: SweepSource, words: Words, kind: str) -> Chart:
    """Draws the p95 of a latency against the load, a line a configuration; F1."""
    scale, unit = _SCALES[kind]
    best = _ranked(sweep)
    series = []
    for index, each in enumerate(best[:_MOST_LINES]):
        made = [row for row in each.points if row["status"] == "ok" and row["load"] is not None]
        loads = tuple(float(row["load"]) for row in made)
        values = tuple(_scaled(row[f"{kind}_p95_ms"], scale) for row in made)
        series.append(Series(f"line_{index}", each.name or "p95", loads, values, index, dash=index % 4))
    left_out = len(best) - len(series)
    caption = words("swept.caption", seeds=len(sweep.document["seeds"]))
    if left_out:
        caption += words("swept.left_out", count=left_out)
    latency = words(f"latency.{kind}")
    return Chart(
        f"{sweep.key}_{kind}", words("chart.overlay.title", latency=latency), caption,
        words("chart.overlay.alt", latency=latency, runs=", ".join(each.title for each in series)),
        Axis(words(f"load.{sweep.unit}.title")), _latency_axis(words, kind, unit, series),
        tuple(series), _bounds(sweep, kind, scale), code="F1",
    )  # fmt: skip


def axis_chart(sweep: SweepSource, words: Words, kind: str) -> Chart:
    """Draws the p95 of a latency against the one value that is varied."""
    scale, unit = _SCALES[kind]
    (key,) = sweep.other_keys
    made = sorted((row for row in sweep.points if row["status"] == "ok"), key=lambda row: float(row[key]))
    places = tuple(float(row[key]) for row in made)
    series = (Series("p95", "p95", places, tuple(_scaled(row[f"{kind}_p95_ms"], scale) for row in made)),)
    latency = words(f"latency.{kind}")
    wide = bool(places) and places[0] > 0 and places[-1] > _WIDE * places[0]
    return Chart(
        f"{sweep.key}_{kind}", words("swept.by_value", latency=latency, setting=short_key(key)),
        words("swept.caption", seeds=len(sweep.document["seeds"])),
        words("swept.by_value", latency=latency, setting=short_key(key)),
        Axis(short_key(key), scale="log" if wide else "linear"), _latency_axis(words, kind, unit, list(series)), series,
        _bounds(sweep, kind, scale),
    )  # fmt: skip


def trade_chart(sweep: SweepSource, words: Words) -> Chart:
    """Draws each point's throughput against its TTFT, those that hold apart from those that do not; F7."""
    made = [row for row in sweep.points if row["status"] == "ok" and row["ttft_p95_ms"] is not None]
    series = []
    for index, (key, holds) in enumerate((("met", True), ("not_met", False))):
        rows = [row for row in made if bool(row["holds"]) is holds]
        places = tuple(row["ttft_p95_ms"] / 1000 for row in rows)
        rates = tuple(row["output_tokens_per_s"] for row in rows)
        if rows:
            series.append(Series(key, words(f"verdict.{key}"), places, rates, index, "dots", dash=index))
    latency = words("latency.ttft")
    places = tuple(place for each in series for place in each.x)
    wide = bool(places) and min(places) > 0 and max(places) > _WIDE * min(places)
    return Chart(
        f"{sweep.key}_trade", words("chart.pareto.title", latency=latency),
        words("swept.caption", seeds=len(sweep.document["seeds"])),
        words("chart.pareto.alt", latency=latency, runs=sweep.name),
        Axis(f"{latency} p95", "s", "log" if wide else "linear"), Axis(words("column.output_tokens"), "tok/s"),
        tuple(series), code="F7",
    )  # fmt: skip


def point_tables(sweep: SweepSource, words: Words) -> list[Table]:
    """Returns every point twice: its throughput, the server and the verdict, then its latencies; T5."""
    points = sweep.points
    ends = (Column("seeds", words("column.seeds"), "count"), Column("verdict", words("column.verdict"), "text"))
    judged = [(*_numbers(point, _SERVER), point["seeds"], _verdict(point, words)) for point in points]
    timed = [_numbers(point, _LATENCIES) for point in points]
    return [
        _point_table(sweep, words, "points", (*_columns(_SERVER, words), *ends), judged),
        _point_table(sweep, words, "points_latencies", _columns(_LATENCIES, words), timed),
    ]


def _point_table(
    sweep: SweepSource, words: Words, key: str, columns: tuple[Column, ...], values: Sequence[tuple[Value, ...]]
) -> Table:
    axes = sweep.document["vary"]
    own = tuple(Column(axis, short_key(axis), "flag") for axis in axes)
    rows = [
        (*(_setting(point[axis]) for axis in axes), *more) for point, more in zip(sweep.points, values, strict=True)
    ]
    title, note = words(f"swept.{key}"), words("table.sweep.note")
    return Table(f"{sweep.key}_{key}", title, (*own, *columns), tuple(rows), note, "T5", True)


def _numbers(point: Row, names: _Numbers) -> tuple[Value, ...]:
    return tuple(point.get(name) for name, _, _ in names)


def _columns(names: _Numbers, words: Words) -> tuple[Column, ...]:
    return tuple(Column(name, _title(name, words), kind, unit) for name, kind, unit in names)


def _setting(value: Value) -> Cell:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(value, "number") if is_number else Cell(as_text(value), "flag")


def _title(name: str, words: Words) -> str:
    kind, _, rest = name.partition("_")
    if words.has(f"short.{kind}") and rest.endswith("_ms"):
        statistic = rest.removesuffix("_ms")
        return f"{words(f'short.{kind}')} {words('word.mean') if statistic == 'mean' else statistic}"
    return words(f"column.{_TITLES.get(name, name)}")


def _verdict(point: Row, words: Words) -> str:
    if point["status"] == "failed":
        return words("swept.failed", cause=point["cause"])
    broken = [name.removeprefix("met[")[:-1] for name, met in point.items() if name.startswith("met[") and met is False]
    if broken:
        return words("verdict.broken", names=", ".join(broken))
    return words("verdict.overloaded") if point["overloaded"] else words("verdict.met")


def _is_numeric(sweep: SweepSource) -> bool:
    (key,) = sweep.other_keys
    values = sweep.document["vary"][key]
    return len(values) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


def _latency_axis(words: Words, kind: str, unit: str, series: list[Series]) -> Axis:
    heights = [y for each in series for y in each.y if y]
    wide = bool(heights) and max(heights) > _WIDE * min(heights)
    return Axis(f"{words(f'latency.{kind}')} p95", unit, "log" if wide else "linear")


def _bounds(sweep: SweepSource, kind: str, scale: float) -> tuple[Mark, ...]:
    """Returns a line for each objective on this latency, as the columns of the points name them."""
    texts = dict.fromkeys(
        name.removeprefix("met[")[:-1] for point in sweep.points for name in point if name.startswith("met[")
    )
    objectives = [Objective.model_validate(text) for text in texts]
    return tuple(Mark("y", 1000 * each.value / scale, each.text, "bad") for each in objectives if each.metric == kind)
