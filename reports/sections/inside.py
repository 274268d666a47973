"""Inside the server: its replicas, and what its steps are made of."""

from __future__ import annotations

from reports.content import Cell, Column, Kind, Table, Value
from reports.context import Context

_REPLICA: tuple[tuple[str, str, Kind], ...] = (
    ("requests", "num_requests", "count"), ("lost", "num_lost", "count"), ("ttft", "ttft_p95_ms", "ms"),
    ("busy", "busy", "share"), ("running", "running", "number"), ("waiting", "waiting", "number"),
    ("kv", "kv", "share"), ("hit_rate", "prefix_hit_rate", "share"), ("up", "up_s", "seconds"),
)  # fmt: skip
_STEPS = ("all", "decode_only", "with_prompts")


def replica_table(context: Context) -> Table | None:
    """Returns a row a replica at the load that is the answer; None where there is one replica."""
    point, words = context.shown_point, context.words
    if point is None or "fleet" not in point:
        return None
    fleet = point["fleet"]
    columns = (
        Column("replica", words("column.replica"), "count"),
        *(Column(key, words(f"replica.{key}"), kind) for key, _, kind in _REPLICA),
    )  # fmt: skip
    rows: list[tuple[Value | Cell, ...]] = [
        (each["replica"], *(each[name] for _, name, _ in _REPLICA)) for each in fleet["replicas"]
    ]
    router = context.document["server"]["router"]
    note = words(
        "table.replicas.note", load=context.load(context.source.shown_load), router=router,
        up=words.number(fleet["mean_up"]), lost=words.count(fleet["num_lost"]),
        rerouted=words.count(fleet["num_rerouted"]), hours=words.number(fleet["replica_hours"]),
    )  # fmt: skip
    return Table("replicas", words("table.replicas.title"), columns, tuple(rows), note)


def step_split_table(context: Context) -> Table | None:
    """Returns the mean step by part, a column a kind of step; None where it was not asked for."""
    split, words = context.document.get("step_split"), context.words
    if split is None:
        return None
    kinds = [kind for kind in _STEPS if split[kind] is not None]
    columns = [Column("part", words("column.part"), "text")]
    for kind in kinds:
        columns.append(Column(kind, words(f"steps.{kind}"), "ms"))
        columns.append(Column(f"{kind}_share", words("steps.share"), "share"))
    columns.append(Column("kernels", words("steps.kernels"), "text"))
    rows: list[tuple[Value | Cell, ...]] = []
    for name, kernels in split["kernels"].items():
        cells: list[Value | Cell] = []
        for kind in kinds:
            part = split[kind]["parts"].get(name)
            cells += [None, None] if part is None else [part["ms"], part["share"]]
        rows.append((words(f"steps.{name}"), *cells, kernels))
    whole = [value for kind in kinds for value in (split[kind]["mean_ms"], 1.0)]
    rows.append((words("steps.whole"), *whole, ""))
    note = words("table.step_split.note", load=context.load(split["load"]), seed=split["seed"], source=split["source"])
    return Table("step_split", words("table.step_split.title"), tuple(columns), tuple(rows), note, wide=True)
