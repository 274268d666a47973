"""What limits servers that are not vLLM: Ollama's slots, loads and 503s, and what static batches waste (T11)."""

from __future__ import annotations

from reports.content import Cell, Column, Kind, Table, Value
from reports.context import Context
from reports.document import Document

_OLLAMA: tuple[tuple[str, Kind], ...] = (
    ("effective_parallel", "count"), ("context_gib", "gib"), ("loads", "number"), ("aborted_loads", "number"),
    ("evictions", "number"), ("expired", "number"), ("load_s", "seconds"), ("rejected_503", "number"),
    ("first_503_s", "seconds"), ("last_503_s", "seconds"), ("eval_tokens_per_s", "number"),
    ("prompt_tokens_per_s", "number"), ("context_shifts", "number"), ("truncated_prompts", "number"),
)  # fmt: skip
_STATIC: tuple[tuple[str, Kind], ...] = (
    ("reservation", "flag"), ("num_batches", "number"), ("mean_size", "number"), ("idle_seat_share", "share"),
    ("padding_share", "share"), ("kv_waste_share", "share"),
)  # fmt: skip


def limit_tables(context: Context) -> list[Table]:
    """Returns T11 where it applies, at the load that is the answer."""
    point = context.shown_point or {}
    if "ollama" in point:
        return [_models(context, point["ollama"]), _ollama(context, point["ollama"])]
    if "static" in point:
        return [_table(context, "static", [_row(context, "static", point["static"], *each) for each in _STATIC])]
    return []


def _ollama(context: Context, use: Document) -> Table:
    rows = [_row(context, "ollama", use, key, kind) for key, kind in _OLLAMA]
    for wait in ("wait_for_load", "wait_for_slot"):
        for key, kind, scale in (("mean_ms", "seconds", 1000), ("p95_ms", "seconds", 1000), ("share", "share", 1)):
            value = use[wait][key]
            cell = Cell(None if value is None else value / scale, kind)  # type: ignore[arg-type]
            rows.append((context.words(f"ollama.{wait}", statistic=context.words(f"ollama.{key}")), cell))
    return _table(context, "ollama", rows)


def _models(context: Context, use: Document) -> Table:
    """Returns one row a model, as it is loaded."""
    words = context.words
    columns = [Column("name", words("server.model"), "flag")]
    columns += [Column(key, key, "count") for key in ("num_parallel", "num_ctx", "num_batch")]
    columns += [Column(key, words(f"ollama.{key}"), "gib") for key in ("context_gib", "gpu_gib", "ram_gib")]
    columns += [Column(key, words(f"ollama.{key}"), "count") for key in ("gpu_layers", "layers")]
    rows = tuple(tuple(model[column.key] for column in columns) for model in use["models"])
    return Table("ollama_models", words("table.ollama_models"), tuple(columns), rows, code="T11")


def _row(context: Context, server: str, use: Document, key: str, kind: Kind) -> tuple[Value | Cell, ...]:
    return context.words(f"{server}.{key}"), Cell(use[key], kind)


def _table(context: Context, key: str, rows: list[tuple[Value | Cell, ...]]) -> Table:
    words = context.words
    columns = (Column("limit", words("column.limit"), "text"), Column("value", words("column.value")))
    note = words("table.own_limits.note", load=context.load(context.source.shown_load))
    return Table(f"{key}_limits", words(f"table.{key}"), columns, tuple(rows), note, "T11")
