"""Who asks: the workload as described and as simulated (T4), by class and by user (T10)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reports.content import Block, Cell, Column, Kind, Section, Table, Value
from reports.context import Context
from reports.source import Detail
from sim.records import RequestRecord, RunRecord
from sim.scenario.model import Scenario

_MOST_USERS = 10


def workload_section(context: Context) -> Section | None:
    """Builds the section on the workload; None when neither the scenario nor any records are there."""
    words, blocks = context.words, list[Block]()
    if context.source.scenario is not None:
        blocks.append(described_table(context, context.source.scenario))
    if context.shown is not None:
        blocks.append(simulated_table(context, context.shown))
    if context.shown_point is not None:
        blocks.append(class_table(context))
    if context.shown is not None:
        users = user_table(context, context.shown)
        blocks += [users] if users is not None else []
    return Section("workload", words("section.workload"), tuple(blocks)) if blocks else None


def described_table(context: Context, scenario: Scenario) -> Table:
    """Returns what the scenario says of its workload; names and values are those of the file."""
    words = context.words
    rows: list[tuple[Value | Cell, ...]] = []
    data = scenario.workload.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    classes = data.pop("classes", [])
    for key, value in data.items():
        rows.append((words("workload.all"), key, describe(value)))
    for each in classes:
        name = each.pop("name")
        rows += [(name, key, describe(value)) for key, value in each.items()]
    columns = (
        Column("class", words("column.class"), "text"),
        Column("setting", words("column.setting"), "text"),
        Column("value", words("column.value"), "flag"),
    )
    return Table("workload", words("table.workload"), columns, tuple(rows), code="T4")


def describe(value: Any) -> str:
    """Writes a setting as the scenario file has it, without braces: `lognormal median 250, p95 2000`."""
    if isinstance(value, dict):
        parts = {key: each for key, each in value.items() if each is not None}
        if len(parts) == 1 and isinstance(next(iter(parts.values())), dict):
            ((name, inner),) = parts.items()
            return f"{name} {describe(inner)}"
        return ", ".join(f"{key} {describe(each)}" for key, each in parts.items())
    if isinstance(value, list):
        return "; ".join(describe(each) for each in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def simulated_table(context: Context, detail: Detail) -> Table:
    """Returns the lengths that were really sent and generated, and how they relate; T4."""
    words, requests = context.words, detail.run.requests
    rows: list[tuple[Value | Cell, ...]] = []
    for key, values in _lengths(requests).items():
        if values.size:
            q = [float(each) for each in np.percentile(values, (50, 95))]
            rows.append((words(f"workload.{key}"), float(values.mean()), q[0], q[1], float(values.max())))
    columns = (
        Column("quantity", words("column.quantity"), "text"), Column("mean", words("word.mean")), Column("p50", "p50"),
        Column("p95", "p95"), Column("max", words("word.max")),
    )  # fmt: skip
    prompt, output = (sum(values) for values in _totals(requests))
    ratio = words("table.simulated.ratio", ratio=words.number(prompt / output)) if output else ""
    note = words("table.simulated.note", run=context.caption(detail), count=words.count(len(requests)), ratio=ratio)
    return Table("simulated_workload", words("table.simulated.title"), columns, tuple(rows), note, "T4")


def _lengths(requests: Sequence[RequestRecord]) -> dict[str, np.ndarray[Any, Any]]:
    turns: dict[tuple[int, int], int] = {}
    conversation: dict[int, int] = {}
    for each in requests:
        if each.user_id >= 0 and each.attempt == 0:
            if each.turn == 0:
                conversation[each.user_id] = conversation.get(each.user_id, 0) + 1
            key = (each.user_id, conversation.get(each.user_id, 0))
            turns[key] = max(turns.get(key, 0), each.turn + 1)
    sent = sorted(each.queued_ns for each in requests)
    return {
        "prompt_tokens": np.array([each.num_prompt_tokens for each in requests]),
        "output_tokens": np.array([each.num_output_tokens for each in requests if each.num_output_tokens]),
        "turns": np.array(list(turns.values()) if any(each.turn for each in requests) else []),
        "gap_s": np.diff(sent) / 1e9,
    }


def _totals(requests: Sequence[RequestRecord]) -> tuple[list[int], list[int]]:
    return [each.num_prompt_tokens for each in requests], [each.num_output_tokens for each in requests]


_CLASS_COLUMNS: tuple[tuple[str, Kind, str], ...] = (
    ("num_requests", "number", ""), ("ttft_p50", "number", "ms"), ("ttft_p99", "number", "ms"),
    ("itl_p50", "number", "ms"), ("itl_p99", "number", "ms"), ("e2el_p95", "number", "ms"),
    ("goodput", "share", ""), ("errors", "share", ""), ("hit_rate", "share", ""),
    ("prompt_share", "share", ""), ("output_share", "share", ""), ("time_share", "share", ""),
)  # fmt: skip


def class_table(context: Context) -> Table:
    """Returns one row a class of users or requests; T10."""
    words, point = context.words, context.shown_point
    assert point is not None, "classes need a load that was simulated"
    shares = _shares(context.shown.run) if context.shown is not None else {}
    rows: list[tuple[Value | Cell, ...]] = []
    for name, each in point["classes"].items():
        latencies = [each[f"{kind}_ms"][q] for kind, q in
                     (("ttft", "p50"), ("ttft", "p99"), ("itl", "p50"), ("itl", "p99"), ("e2el", "p95"))]  # fmt: skip
        own = shares.get(name, (None, None, None))
        judged = (each["goodput"], each["errors"]["share"], each["prefix_hit_rate"])
        rows.append((name, each["num_requests"], *latencies, *judged, *own))
    columns = [Column("class", words("column.class"), "text")]
    for key, kind, unit in _CLASS_COLUMNS:
        latency, _, statistic = key.partition("_")
        known = words.has(f"short.{latency}")
        title = f"{words(f'short.{latency}')} {statistic}" if known else words(f"column.{key}")
        columns.append(Column(key, title, kind, unit))
    note = words("table.classes.note", load=context.load(context.source.shown_load))
    return Table("classes", words("table.classes.title"), tuple(columns), tuple(rows), note, "T10")


def _shares(run: RunRecord) -> dict[str, tuple[float | None, ...]]:
    """Returns each class's share of the computed prompt tokens, of the output tokens and of the engine's time."""
    totals = _sums((run.class_names[each.class_id], each) for each in run.requests)
    whole = [sum(each[index] for each in totals.values()) for index in range(3)]
    return {
        name: tuple(value / total if total else None for value, total in zip(each, whole, strict=True))
        for name, each in totals.items()
    }


def _sums(requests: Iterable[tuple[Any, RequestRecord]]) -> dict[Any, list[int]]:
    """Sums computed prompt tokens, output tokens and nanoseconds of the engine by key."""
    totals: dict[Any, list[int]] = {}
    for key, each in requests:
        own = totals.setdefault(key, [0, 0, 0])
        own[0] += each.num_prompt_tokens - each.num_cached_tokens if each.first_token_ns >= 0 else 0
        own[1] += each.num_output_tokens
        own[2] += each.engine_ns
    return totals


def user_table(context: Context, detail: Detail) -> Table | None:
    """Returns the users who took most of the engine's time; None for workloads without users; T10."""
    words, run = context.words, detail.run
    if not any(each.user_id >= 0 for each in run.requests):
        return None
    totals = _sums((each.user_id, each) for each in run.requests)
    whole = sum(each[2] for each in totals.values())
    counts: dict[int, list[int]] = {}
    for each in run.requests:
        own = counts.setdefault(each.user_id, [0, 0])
        own[0] += 1
        own[1] += each.num_prompt_tokens
    heaviest = sorted(totals, key=lambda user: (-totals[user][2], user))[:_MOST_USERS]
    rows = tuple(
        (f"{user}", counts[user][0], counts[user][1], totals[user][0], totals[user][1],
         totals[user][2] / whole if whole else None)
        for user in heaviest
    )  # fmt: skip
    columns = (
        Column("user", words("column.user"), "text"), Column("requests", words("column.num_requests"), "count"),
        Column("prompt", words("column.prompt"), "count"), Column("computed", words("column.computed"), "count"),
        Column("output", words("column.output"), "count"), Column("time_share", words("column.time_share"), "share"),
    )  # fmt: skip
    note = words("table.users.note", run=context.caption(detail), count=len(totals))
    return Table("users", words("table.users.title"), columns, rows, note, "T10")
