"""Several runs side by side: answers and their differences with uncertainty, settings that differ, F7."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.content import Axis, Block, Cell, Chart, Column, Paragraph, Section, Series, Table, Value
from reports.context import Context
from reports.document import Document
from reports.sections.server import num_gpus_of, output_cost, user_month_cost
from reports.sections.sweep import SLO_COLUMNS_S, supported_within, verdict
from sim.what_if.effect import effect_of


def comparison_section(contexts: Sequence[Context]) -> Section:
    """Builds the section that sets runs side by side; the first is what the others are compared with."""
    words = contexts[0].words
    blocks: list[Block] = [answer_table(contexts)]
    if len({context.source.unit for context in contexts}) > 1:
        blocks.insert(0, Paragraph(words("comparison.units"), "warn"))
    else:
        paired = (paired_table(contexts[0], other, number) for number, other in enumerate(contexts[1:], 1))
        blocks += [table for table in paired if table is not None]
        blocks.append(slo_table(contexts))
        blocks += [chart for chart in (_overlay(contexts, kind) for kind in ("ttft", "itl")) if chart is not None]
    blocks += [_pareto(contexts, "ttft"), _pareto(contexts, "itl")]
    uncalibrated = [context.source.name for context in contexts if not context.document["calibrated"]]
    if uncalibrated:
        blocks.insert(0, Paragraph(words("comparison.uncalibrated", runs=", ".join(uncalibrated)), "warn"))
    different = settings_table(contexts)
    blocks.append(different if different is not None else Paragraph(words("comparison.same_settings")))
    return Section("comparison", words("section.comparison"), tuple(blocks))


def answer_table(contexts: Sequence[Context]) -> Table:
    """Returns a column a run: the answer, its interval, the difference to the first with its uncertainty, and more."""
    words, first = contexts[0].words, contexts[0]
    found = [_answers(first, context) for context in contexts]
    rows = tuple((title, *(each[title] for each in found)) for title in found[0])
    columns = [Column("quantity", words("column.quantity"), "text")]
    columns += [Column(f"run_{index}", context.source.name) for index, context in enumerate(contexts)]
    return Table(
        "comparison", words("table.comparison"), tuple(columns), rows, words("comparison.note"), "T1", wide=True
    )


def _answers(first: Context, context: Context) -> dict[str, Value | Cell]:
    """Returns what the comparison says of one run, by title."""
    words, document, point = context.words, context.document, context.shown_point
    bounds, resource = document["supported_users"], document["binding_resource"]
    value: Value = bounds["value"]
    if value is None and point is not None:
        value = verdict(context, point)
    found: dict[str, Value | Cell] = {
        words("column.supported"): value,
        words("column.unit"): context.load_title,
        words("column.interval"): _interval(context),
        words("column.difference"): difference(first, context),
        words("column.binds"): words(f"resource.{resource}.name") if resource else "–",
    }
    if point is not None:
        found |= _measures(context, point)
    server = document["server"]
    found[words("column.gpus")] = f"{num_gpus_of(document)} × {server['gpu']}"
    found[words("column.calibrated")] = words("word.yes" if document["calibrated"] else "word.no")
    if first.prices is not None:
        title = f"{words('column.cost_per_million')} ({first.prices.currency})"
        found[title] = Cell(output_cost(context), "money")
        found[f"{words('cost.per_user_month')} ({first.prices.currency})"] = Cell(user_month_cost(context), "money")
    return found


def _measures(context: Context, point: Document) -> dict[str, Value | Cell]:
    words = context.words
    found: dict[str, Value | Cell] = {
        f"{words(f'short.{kind}')} p95 (ms)": point[f"{kind}_ms"]["p95"] for kind in ("ttft", "itl", "e2el")
    }
    found[f"{words('column.output_tokens')} (tok/s)"] = point["throughput"]["output_tokens_per_s"]
    for key, share in (("kv_max", point["kv"]["max"]), ("hit_rate", point["prefix_hit_rate"])):
        found[words(f"column.{key}")] = Cell(share, "share")
    found[words("column.goodput")] = Cell(point["goodput"], "share")
    return found


def _interval(context: Context) -> str:
    words, bounds = context.words, context.document["supported_users"]
    if None in (bounds["low"], bounds["high"]):
        return "–"
    return words("comparison.interval", low=words.number(bounds["low"]), high=words.number(bounds["high"]))


def difference(first: Context, other: Context) -> str:
    """Writes how far another answer lies from the first, with a 95 % interval of the difference.

    The two intervals are combined as if the runs were independent (root of the sum of squares); equal seeds make the
    difference surer than that, never less sure.
    """
    words = first.words
    ours, theirs = first.document["supported_users"], other.document["supported_users"]
    if first is other or first.source.unit != other.source.unit or None in (ours["value"], theirs["value"]):
        return "–"
    gap = theirs["value"] - ours["value"]
    share = words.signed_share(gap / ours["value"]) if ours["value"] else ""
    sign = "+" if gap > 0 else "−" if gap < 0 else "±"
    text = f"{sign}{words.number(abs(gap))}" + (f" ({share})" if share else "")
    if None in (ours["low"], ours["high"], theirs["low"], theirs["high"]):
        return words("comparison.no_interval", difference=text)
    half = math.hypot((ours["high"] - ours["low"]) / 2, (theirs["high"] - theirs["low"]) / 2)
    key = "comparison.differs" if abs(gap) > half else "comparison.may_be_chance"
    return words(key, difference=text, half=words.number(half))


def paired_table(first: Context, other: Context, number: int = 1) -> Table | None:
    """Returns what the objectives measure in two runs at one load, seed by seed; None without a load in common.

    Equal seeds are equal days: the same users and arrivals. So the interval is that of the mean of the differences
    (Student's t, 95 %), far narrower than those of either run.
    """
    words, found = first.words, _common_point(first, other)
    if found is None:
        return None
    ours, theirs = found
    seeds = [seed for seed in ours["seeds"] if seed in theirs["seeds"]]
    known = {each["objective"]: _by_seed(theirs, each) for each in theirs["objectives"]}
    rows: list[tuple[Value | Cell, ...]] = []
    for each in ours["objectives"]:
        if each["objective"] in known:
            before, after = _by_seed(ours, each), known[each["objective"]]
            effect = effect_of([before[seed] for seed in seeds], [after[seed] for seed in seeds])
            verdict_key = "comparison.clear" if effect.is_clear else "comparison.chance"
            rows.append((
                each["name"], effect.before, effect.after, effect.difference, effect.low, effect.high,
                words(verdict_key) if effect.low is not None else "–",
            ))  # fmt: skip
    if not rows:
        return None
    columns = (
        Column("measure", words("column.metric"), "flag"), Column("before", first.source.name),
        Column("after", other.source.name), Column("difference", words("column.difference")),
        Column("low", words("column.low")), Column("high", words("column.high")),
        Column("clear", words("comparison.told"), "text"),
    )  # fmt: skip
    title = words("comparison.paired", load=first.load(ours["load"]), run=other.source.name)
    note = words("comparison.paired_note", seeds=len(seeds))
    return Table(f"paired_{number}", title, columns, tuple(rows), note, "T1", wide=True)


def _common_point(first: Context, other: Context) -> tuple[Document, Document] | None:
    """Returns the load that both have tried with most seeds in common, the nearest to the first's answer."""
    around = first.source.shown_load or 0.0
    pairs: list[tuple[int, float, Document, Document]] = []
    for ours in first.document["points"]:
        theirs = other.source.point(ours["load"])
        if theirs is not None and (shared := len(set(ours["seeds"]) & set(theirs["seeds"]))):
            pairs.append((-shared, abs((ours["load"] or 0.0) - around), ours, theirs))
    return min(pairs, key=lambda pair: pair[:2])[2:] if pairs else None


def _by_seed(point: Document, objective: Document) -> dict[int, float | None]:
    return dict(zip(point["seeds"], objective["per_seed"], strict=True))


def slo_table(contexts: Sequence[Context]) -> Table:
    """Returns what each run supports by the bound on the TTFT; T6 side by side."""
    words = contexts[0].words
    rows = []
    for context in contexts:
        points = [point for point in context.document["points"] if point["load"] is not None]
        rows.append((context.source.name, *(supported_within(points, bound) for bound in SLO_COLUMNS_S)))
    columns = [Column("run", words("column.run"), "text")]
    for bound in SLO_COLUMNS_S:
        title = words("table.slo.bound", bound=words.duration(bound))
        columns.append(Column(f"ttft_p95_{bound:g}s", title, "number", contexts[0].load_title))
    return Table("slo_comparison", words("table.slo.title"), tuple(columns), tuple(rows), words("table.slo.note"), "T6")


def settings_table(contexts: Sequence[Context]) -> Table | None:
    """Returns the settings in which the runs differ; None when they do not."""
    words = contexts[0].words
    settings = [_settings(context) for context in contexts]
    names = list(dict.fromkeys(name for each in settings for name in each))
    rows = tuple(
        (name, *(each.get(name, "–") for each in settings))
        for name in names
        if len({each.get(name) for each in settings}) > 1
    )
    if not rows:
        return None
    columns = [Column("setting", words("column.setting"), "flag")]
    columns += [Column(f"run_{index}", context.source.name, "flag") for index, context in enumerate(contexts)]
    return Table("settings", words("table.settings"), tuple(columns), rows, code="T2", wide=True)


def _settings(context: Context) -> dict[str, str]:
    server = context.document["server"]
    known = {key: str(value) for key, value in server.items() if key != "flags"}
    known |= {name: str(flag["value"]) for name, flag in server["flags"].items()}
    memory = context.document["memory"]
    known |= {key: str(memory[key]) for key in ("num_gpu_blocks", "kv_tokens")}
    return known | {"step_times": context.document["step_times"]["source"]}


def _overlay(contexts: Sequence[Context], kind: str) -> Chart | None:
    """Draws the p95 of a latency against the load for every run."""
    words, scale = contexts[0].words, 1000.0 if kind == "ttft" else 1.0
    series = []
    for index, context in enumerate(contexts):
        points = [point for point in context.document["points"] if point["load"] is not None]
        values = [point[f"{kind}_ms"]["p95"] for point in points]
        if len(points) > 1:
            shown = tuple(None if value is None else value / scale for value in values)
            loads = tuple(point["load"] for point in points)
            series.append(Series(f"run_{index}", context.source.name, loads, shown, index % 6, dash=index % 4))
    if not series:
        return None
    heights = [y for each in series for y in each.y if y]
    wide = bool(heights) and max(heights) > 20 * min(heights)
    latency = words(f"latency.{kind}")
    return Chart(
        f"{kind}_comparison", words("chart.overlay.title", latency=latency), words("caption.overlay"),
        words("chart.overlay.alt", latency=latency, runs=", ".join(each.title for each in series)),
        Axis(contexts[0].load_title),
        Axis(f"{latency} p95", "s" if kind == "ttft" else "ms", "log" if wide else "linear"),
        tuple(series), code="F1",
    )  # fmt: skip


def _pareto(contexts: Sequence[Context], kind: str) -> Chart:
    """Draws throughput against latency at each run's answer: up and to the left is better; F7."""
    words, scale = contexts[0].words, 1000.0 if kind == "ttft" else 1.0
    series = []
    for index, context in enumerate(contexts):
        point = context.shown_point
        latency = point[f"{kind}_ms"]["p95"] if point is not None else None
        if point is not None and latency is not None:
            rate = point["throughput"]["output_tokens_per_s"]
            name = context.source.name
            series.append(Series(f"run_{index}", name, (latency / scale,), (rate,), index % 6, "dots", index % 4))
    latency = words(f"latency.{kind}")
    return Chart(
        f"{kind}_pareto", words("chart.pareto.title", latency=latency), words("caption.pareto"),
        words("chart.pareto.alt", latency=latency, runs=", ".join(each.title for each in series)),
        Axis(f"{latency} p95", "s" if kind == "ttft" else "ms"), Axis(words("column.output_tokens"), "tok/s"),
        tuple(series), code="F7",
    )  # fmt: skip
