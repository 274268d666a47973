"""A real server's metrics beside the simulated ones (F8): both read from the same buckets, so that like meets like."""

from __future__ import annotations

import math
from collections.abc import Mapping

from reports.content import Axis, Block, Chart, Column, Paragraph, Section, Series, Table, Value
from reports.context import Context
from reports.snapshots import Metrics, parse_metrics
from reports.vllm_metrics import vllm_metrics
from reports.words import Words

_LATENCIES = (
    ("ttft", "vllm:time_to_first_token_seconds"), ("itl", "vllm:inter_token_latency_seconds"),
    ("e2el", "vllm:e2e_request_latency_seconds"), ("queue", "vllm:request_queue_time_seconds"),
)  # fmt: skip
_OLDER = {"vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds"}
_QUANTILES = (0.5, 0.95, 0.99)


def measured_section(context: Context, measured: Metrics) -> Section | None:
    """Builds the section that sets a measured server beside the run that is shown closely; None without its records."""
    if context.shown is None:
        return None
    words, run = context.words, context.shown.run
    simulated = parse_metrics(vllm_metrics(run, context.document).text(run.end_ns))
    blocks: list[Block] = [Paragraph(words("measured.method", run=context.caption(context.shown)))]
    blocks.append(comparison_table(context, measured, simulated))
    for kind, name in _LATENCIES[:3]:
        chart = _overlay(words, kind, name, {"measured": measured, "simulated": simulated})
        blocks += [chart] if chart is not None else []
    return Section("measured", words("section.measured"), tuple(blocks))


def snapshot_section(words: Words, measured: Metrics) -> Section:
    """Builds the section on a measured server with nothing simulated beside it."""
    rows: list[tuple[Value, ...]] = []
    for kind, name in _LATENCIES:
        own = _name(measured, name)
        pairs = [
            (words("word.mean"), measured.mean(own)),
            *((f"p{100 * q:g}", measured.quantile(own, q)) for q in _QUANTILES),
        ]
        rows += [(f"{words(f'short.{kind}')} {label} (ms)", _in_ms(value, None)[0]) for label, value in pairs]
    rows += [(words(f"measured.{key}"), real) for key, real, _ in _ratios(measured, measured)]
    columns = (Column("quantity", words("column.quantity"), "text"), Column("measured", words("column.measured")))
    table = Table("measured", words("section.snapshot"), columns, tuple(rows), words("measured.note"), "T9")
    requests = words.count(measured.values.get("vllm:request_success", 0.0))
    blocks: list[Block] = [Paragraph(words("snapshot.headline", requests=requests)), Paragraph(words("snapshot.lines"))]
    charts = (_overlay(words, kind, name, {"measured": measured}) for kind, name in _LATENCIES[:3])
    return Section(
        "measured", words("section.snapshot"), (*blocks, table, *(each for each in charts if each is not None))
    )


def comparison_table(context: Context, measured: Metrics, simulated: Metrics) -> Table:
    """Returns latencies, cache and token counts, measured and simulated, with the error of the simulation; T9."""
    words = context.words
    rows: list[tuple[Value, ...]] = []
    for kind, name in _LATENCIES:
        real_name = _name(measured, name)
        pairs = [(words("word.mean"), measured.mean(real_name), simulated.mean(name))]
        pairs += [(f"p{100 * q:g}", measured.quantile(real_name, q), simulated.quantile(name, q)) for q in _QUANTILES]
        for label, real, ours in pairs:
            rows.append(_row(context, f"{words(f'short.{kind}')} {label} (ms)", *_in_ms(real, ours)))
    for key, real, ours in _ratios(measured, simulated):
        rows.append(_row(context, words(f"measured.{key}"), real, ours))
    columns = (
        Column("quantity", words("column.quantity"), "text"), Column("measured", words("column.measured")),
        Column("simulated", words("column.simulated")), Column("error", words("column.error"), "text"),
    )  # fmt: skip
    return Table("measured", words("table.measured"), columns, tuple(rows), words("measured.note"), "T9")


def _name(metrics: Metrics, name: str) -> str:
    """Returns the name under which a snapshot has a histogram: older servers call some differently."""
    return name if name in metrics.buckets else _OLDER.get(name, name)


def _in_ms(real: float | None, ours: float | None) -> tuple[float | None, float | None]:
    return (None if real is None else 1000 * real), (None if ours is None else 1000 * ours)


def _row(context: Context, title: str, real: float | None, ours: float | None) -> tuple[Value, ...]:
    error = context.words.signed_share(ours / real - 1) if real and ours is not None else None
    return title, real, ours, error


def _ratios(measured: Metrics, simulated: Metrics) -> list[tuple[str, float | None, float | None]]:
    """Returns what does not depend on how long was measured."""
    found = []
    for key, part, whole in (
        ("hit_rate", "vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
        ("preemptions_per_request", "vllm:num_preemptions", "vllm:request_success"),
        ("prompt_per_request", "vllm:prompt_tokens", "vllm:request_success"),
        ("output_per_request", "vllm:generation_tokens", "vllm:request_success"),
    ):
        found.append((key, _ratio(measured, part, whole), _ratio(simulated, part, whole)))
    return found


def _ratio(metrics: Metrics, part: str, whole: str) -> float | None:
    amount = metrics.values.get(whole, 0.0)
    return metrics.values.get(part, 0.0) / amount if amount else None


def _overlay(words: Words, kind: str, name: str, by_key: Mapping[str, Metrics]) -> Chart | None:
    """Draws the cumulative distributions over the bounds of the buckets; F8."""
    series = []
    for index, (key, metrics) in enumerate(by_key.items()):
        own = _name(metrics, name)
        count = metrics.count(own)
        if not count:
            return None
        points = [(bound, value / count) for bound, value in metrics.buckets[own] if math.isfinite(bound)]
        xs, ys = tuple(bound for bound, _ in points), tuple(round(share, 5) for _, share in points)
        series.append(Series(key, words(f"column.{key}"), xs, ys, index, dash=index))
    title = words("chart.measured.title", latency=words(f"latency.{kind}"))
    return Chart(
        f"{kind}_measured", title, words("caption.buckets"),
        words("chart.measured.alt", latency=words(f"latency.{kind}")),
        Axis(words(f"latency.{kind}"), "s", "log"), Axis(words("column.share"), kind="share", at_least=1.0),
        tuple(series), code="F8",
    )  # fmt: skip
