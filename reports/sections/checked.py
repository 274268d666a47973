"""A spot check: the live server beside the simulation of the same requests (T9), scatter and distributions (F8)."""

from __future__ import annotations

from typing import Any

from reports.check_source import CheckSource
from reports.content import Axis, Block, Chart, Column, Headline, Paragraph, Section, Series, Table, Tone, Value
from reports.words import Words

_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_UNITS = {"request_throughput": "requests/s", "output_throughput": "tok/s", "duration": "s", "hit_rate": "%"}
_SCALES = {**dict.fromkeys(_LATENCIES, 1000.0), "hit_rate": 100.0}
_MOST_LIVE = 4  # runs that a chart can tell apart


def checked_section(check: CheckSource, words: Words, shown: Chart | None = None) -> Section:
    """Builds the section on a spot check; the chart that is `shown` on the first screen is left out."""
    document = check.document
    tone: Tone = "plain" if document["passed"] else "warn"
    blocks: list[Block] = [Paragraph(verdict(check, words), tone)]
    live = ", ".join(words.count(count) for count in document["num_finished"])
    blocks.append(Paragraph(words("checked.requests", live=live, repeats=len(document["num_finished"]))))
    spread = document["median_spread_percent"]
    text = words("checked.one_run") if spread is None else words("checked.spread", spread=words.share(spread / 100, 2))
    blocks.append(Paragraph(text))
    blocks += [Paragraph(words("checked.reason", reason=words.said(reason)), "warn") for reason in document["reasons"]]
    blocks.append(error_table(check, words))
    measured = scatter(check, words)
    blocks += [measured] if shown is None or shown.key != measured.key else []
    blocks += [overlay(check, words, kind) for kind in _LATENCIES if document["distributions"][kind]["simulated"]]
    blocks += [Paragraph(words.said(text), "warn") for text in document["warnings"]]
    return Section(check.key, words("section.checked", name=check.name), tuple(blocks))


def checked_headline(check: CheckSource, words: Words) -> Headline:
    """Builds the first screen of a report on a spot check alone."""
    error = check.median_error
    answer = words("checked.headline_unknown")
    if error is not None:
        answer = words("checked.headline", error=words.share(error, 2))
    return Headline(
        answer=answer,
        tone="good" if check.document["passed"] else "bad",
        lines=(),
        binds=(),
        calibration=verdict(check, words),
        calibrated=bool(check.document["passed"]),
        limits=(),
        changes=(),
        changes_note="",
        facts=(),
        chart=scatter(check, words),
    )


def verdict(check: CheckSource, words: Words) -> str:
    """Says whether the prediction is close enough, and by what measure."""
    document, error = check.document, check.median_error
    key = "checked.passed" if document["passed"] else "checked.not_passed"
    allowed = words.share(document["allowed_percent"] / 100, 2)
    return words(key, error=words.share(error, 2), allowed=allowed)


def error_table(check: CheckSource, words: Words) -> Table:
    """Returns every number of the real runs and of the simulation, with its error; T9."""
    rows: list[tuple[Value, ...]] = []
    for row in check.document["rows"]:
        scale = _SCALES.get(row["metric"], 1.0)
        numbers = [None if value is None else value * scale for value in (*row["live"], row["simulated"])]
        error, spread = row["error_percent"], row["spread_percent"]
        shown = None if error is None else words.signed_share(error / 100)
        rows.append((_name(row, words), *numbers, shown, None if spread is None else spread / 100))
    count = len(check.document["num_finished"])
    columns = (
        Column("quantity", words("column.quantity"), "text"),
        *(Column(f"live_{number}", words("checked.live", number=number)) for number in range(1, count + 1)),
        Column("simulated", words("column.simulated")),
        Column("error", words("column.error"), "text"),
        Column("spread", words("checked.spread_column"), "share"),
    )
    title, note = words("checked.table"), words("checked.note")
    return Table(f"{check.key}_errors", title, columns, tuple(rows), note, "T9", True)


def scatter(check: CheckSource, words: Words) -> Chart:
    """Draws the latencies as simulated against those measured; F8."""
    series: list[Series] = []
    for index, kind in enumerate(_LATENCIES):
        rows = [row for row in check.document["rows"] if row["metric"] == kind]
        pairs = [(_mean(row["live"]), row["simulated"]) for row in rows]
        known = [(1000 * real, 1000 * ours) for real, ours in pairs if real is not None and ours is not None]
        if known:
            xs, ys = zip(*known, strict=True)
            series.append(Series(kind, words(f"short.{kind}"), xs, ys, index, "dots", index % 4))
    places = [place for each in series for place in (*each.x, *(y for y in each.y if y is not None)) if place > 0]
    if places:
        ends = (min(places), max(places))
        series.append(Series("equal", words("checked.equal"), ends, ends, 5, dash=1))
    measured, simulated = words("column.measured"), words("column.simulated")
    return Chart(
        f"{check.key}_scatter", words("checked.scatter"), words("checked.scatter_caption"),
        words("checked.scatter_alt"), Axis(measured, "ms", "log"), Axis(simulated, "ms", "log"), tuple(series),
        code="F8", data=_scatter_data(series, measured, simulated, words),
    )  # fmt: skip


def _scatter_data(series: list[Series], measured: str, simulated: str, words: Words) -> Table:
    rows = tuple((each.title, x, y) for each in series[:-1] for x, y in zip(each.x, each.y, strict=True))
    columns = (Column("metric", words("column.metric"), "text"), Column("measured", measured, "number", "ms"),
               Column("simulated", simulated, "number", "ms"))  # fmt: skip
    return Table("scatter_data", words("checked.scatter"), columns, rows)


def overlay(check: CheckSource, words: Words, kind: str) -> Chart:
    """Draws the distributions of a latency over each other; F8."""
    kept, shares = check.document["distributions"][kind], check.document["shares"]
    scale, unit = (1.0, "s") if kind in ("ttft", "e2el") else (1000.0, "ms")
    ys = tuple(share / 100 for share in shares)
    series = [
        Series(f"live_{number}", words("checked.live", number=number), _places(values, scale), ys, 0, dash=number % 4)
        for number, values in enumerate(kept["live"][:_MOST_LIVE], 1)
        if values
    ]
    series.append(Series("simulated", words("column.simulated"), _places(kept["simulated"], scale), ys, 1))
    latency = words(f"latency.{kind}")
    places = [place for each in series for place in each.x]
    wide = min(places) > 0 and max(places) > 20 * min(places)
    return Chart(
        f"{check.key}_{kind}", words("chart.measured.title", latency=latency),
        words("checked.overlay_caption", name=check.name), words("chart.measured.alt", latency=latency),
        Axis(latency, unit, "log" if wide else "linear"),
        Axis(words("column.share"), kind="share", at_least=1.0), tuple(series), code="F8",
    )  # fmt: skip


def _places(values: list[float], scale: float) -> tuple[float, ...]:
    return tuple(float(f"{value * scale:.6g}") for value in values)


def _name(row: dict[str, Any], words: Words) -> str:
    metric, statistic = row["metric"], row["statistic"]
    if metric in _LATENCIES:
        return f"{words(f'short.{metric}')} {words('word.mean') if statistic == 'mean' else statistic} (ms)"
    title = words(f"checked.{metric}")
    return f"{title} ({_UNITS[metric]})" if metric in _UNITS else title


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
