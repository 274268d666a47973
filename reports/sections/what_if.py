"""What would help: the changes that were simulated (T8), and the KV cache's headroom (F6)."""

from __future__ import annotations

from reports.content import Axis, Block, Change, Chart, Column, Paragraph, Section, Series, Table, Tone, Value
from reports.context import Context
from reports.document import Document


def what_if_section(context: Context) -> Section | None:
    """Builds the section on changes; None where nothing binds and none was simulated."""
    words, what_if = context.words, context.source.what_if
    if what_if is None:
        if context.document["binding_resource"] is None:
            return None
        return Section("what_if", words("section.what_if"), (Paragraph(words("what_if.not_simulated")),))
    blocks: list[Block] = []
    if what_if["changes"]:
        blocks.append(Paragraph(words("what_if.method", seeds=what_if["seeds"])))
        blocks.append(change_table(context, what_if))
    else:
        blocks.append(Paragraph(words("what_if.nothing_binds")))
    blocks += [
        _headroom_chart(context, what_if, kind)
        for kind in ("ttft", "itl")
        if any(row[f"{kind}_p95_ms"] is not None for row in what_if["sensitivity"])
    ]
    return Section("what_if", words("section.what_if"), tuple(blocks))


def best_changes(context: Context, most: int) -> tuple[Change, ...]:
    """Returns the changes that help most, the best first."""
    what_if = context.source.what_if
    assert what_if is not None, "no change was simulated"
    helpful = [(gain(change, what_if), change) for change in what_if["changes"] if change["status"] == "simulated"]
    ranked = sorted(helpful, key=lambda pair: -pair[0])
    return tuple(
        Change(change_title(context, change), effect(context, change, what_if), _tone(share), flags(change))
        for share, change in ranked[:most]
        if share > 0
    )


def gain(change: Document, what_if: Document) -> float:
    """Returns by what share a change raises the answer; for a single load, 1 when it makes everything hold."""
    before = what_if["baseline"]["value"]
    if change["value"] is None:
        return 1.0 if change["met"] else 0.0
    if not before:
        return float(change["value"])
    return float(change["value"]) / float(before) - 1


def _tone(share: float) -> Tone:
    return "good" if share >= 0.1 else "plain"


def change_title(context: Context, change: Document) -> str:
    """Says what was changed."""
    return context.words(f"what_if.{change['key']}", before=change["before"], after=change["after"])


def flags(change: Document) -> str:
    """Returns the change as a command line takes it."""
    return " ".join(f"--set {key}={value}" for key, value in change["changes"].items())


def effect(context: Context, change: Document, what_if: Document) -> str:
    """Says what a change does to the answer, with its interval."""
    words = context.words
    if change["status"] != "simulated":
        return words(f"what_if.status_{change['status']}", note=change["note"])
    if change["value"] is None:
        return words("what_if.now_met" if change["met"] else "what_if.still_not_met")
    after = context.load(change["value"])
    if change["ceiling_reached"]:
        after = words("answer.at_least", load=after)
    before = what_if["baseline"]["value"]
    if not before:
        return words("what_if.effect_from_nothing", after=after)
    share = words.signed_share(change["value"] / before - 1)
    if change["low"] is None or change["high"] is None:
        return words("what_if.effect", before=words.number(before), after=after, share=share)
    low, high = words.number(change["low"]), words.number(change["high"])
    return words("what_if.effect_interval", before=words.number(before), after=after, share=share, low=low, high=high)


def change_table(context: Context, what_if: Document) -> Table:
    """Returns one row a change; T8."""
    words = context.words
    rows: list[tuple[Value, ...]] = []
    ranked = sorted(what_if["changes"], key=lambda change: (change["status"] != "simulated", -gain(change, what_if)))
    for change in ranked:
        resource = change["binding_resource"]
        then = words(f"resource.{resource}.name") if resource else "–"
        if change["status"] != "simulated" or change["value"] is None:
            then = effect(context, change, what_if)
        share = gain(change, what_if) if change["value"] is not None and what_if["baseline"]["value"] else None
        title = change_title(context, change)
        rows.append((title, change["value"], change["low"], change["high"], share, then, flags(change)))
    columns = (
        Column("change", words("column.change"), "text"),
        Column("value", words("column.supported"), "number", context.load_title),
        Column("low", words("column.low")),
        Column("high", words("column.high")),
        Column("gain", words("column.gain"), "share"),
        Column("then", words("column.then_binds"), "text"),
        Column("flags", words("column.flags"), "flag"),
    )
    return Table("what_if", words("table.what_if"), columns, tuple(rows), words("what_if.uncertainty"), "T8")


def _headroom_chart(context: Context, what_if: Document, kind: str) -> Chart:
    """Draws a latency at the answer against the number of KV blocks; F6."""
    words = context.words
    rows = [row for row in what_if["sensitivity"] if row[f"{kind}_p95_ms"] is not None]
    scale, unit = (1000.0, "s") if kind == "ttft" else (1.0, "ms")
    factors = tuple(row["factor"] for row in rows)
    values = tuple(row[f"{kind}_p95_ms"] / scale for row in rows)
    latency = words(f"latency.{kind}")
    columns = (
        Column("factor", words("axis.blocks"), "share"),
        Column("num_gpu_blocks", words("memory.num_gpu_blocks"), "count"),
        Column("p95", f"{latency} p95", "number", unit),
        Column("preemptions", words("column.preemptions"), "number"),
        Column("met", words("column.verdict"), "text"),
    )
    met = [words("verdict.met" if row["met"] else "verdict.not_met") for row in rows]
    data = tuple(
        (row["factor"], row["num_gpu_blocks"], value, row["preemptions"], verdict)
        for row, value, verdict in zip(rows, values, met, strict=True)
    )
    title = words("chart.headroom.title", latency=latency)
    return Chart(
        f"{kind}_by_blocks", title, words("caption.headroom", load=context.load(what_if["load"])),
        words("chart.headroom.alt", latency=latency, few=words.duration(values[0] * scale / 1000),
              many=words.duration(values[-1] * scale / 1000)),
        Axis(words("axis.blocks"), kind="share"), Axis(f"{latency} p95", unit),
        (Series("p95", f"{latency} p95", factors, values, 0),),
        code="F6", data=Table(f"{kind}_by_blocks_data", title, columns, data),
    )  # fmt: skip
