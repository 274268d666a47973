"""The server: its flags (T2), its memory (T3), and what it costs."""

from __future__ import annotations

import numpy as np

from reports.content import Block, Cell, Column, Section, Table, Value
from reports.context import Context
from reports.document import Document
from reports.sections.inside import replica_table, step_split_table
from reports.sections.other_servers import limit_tables

_HOURS_PER_MONTH = 730.0
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def server_section(context: Context) -> Section:
    """Builds the section on the server."""
    blocks: list[Block] = [configuration_table(context), memory_table(context), *limit_tables(context)]
    blocks += [table for table in (replica_table(context), step_split_table(context)) if table is not None]
    if context.prices is not None:
        blocks.append(cost_table(context))
    return Section("server", context.words("section.server"), tuple(blocks))


def configuration_table(context: Context) -> Table:
    """Returns every setting with its value, and whether it is the default; T2."""
    words, server = context.words, context.document["server"]
    rows: list[tuple[Value | Cell, ...]] = [
        (words(f"server.{key}"), Cell(str(server[key]), "flag"), "") for key in ("kind", "version", "model", "gpu")
    ]
    if server["kind"] == "ollama":  # which puts its layers one after the other on them
        rows.append((words("column.gpus"), Cell(num_gpus_of(context.document), "count"), ""))
    else:
        rows += [(key, Cell(server[key], "count"), "") for key in _PARALLEL if server[key] > 1 or key == _PARALLEL[0]]
    if "replicas" in server:
        rows += [("replicas", Cell(server["replicas"], "count"), ""), ("router", Cell(server["router"], "flag"), "")]
    for name, flag in server["flags"].items():
        if flag["value"] is None and flag["default"]:
            continue
        where = words("server.default" if flag["default"] else "server.given")
        rows.append((name, Cell(_flag(flag["value"]), "flag"), where))
    columns = (
        Column("setting", words("column.setting"), "text"),
        Column("value", words("column.value"), "flag"),
        Column("default", words("column.origin"), "text"),
    )
    return Table("configuration", words("table.configuration"), columns, tuple(rows), code="T2")


def _flag(value: Value) -> Value:
    return str(value).lower() if isinstance(value, bool) else value


def memory_table(context: Context) -> Table:
    """Returns the memory of one GPU, part by part, and what fits in the KV cache; T3."""
    words, memory = context.words, context.document["memory"]
    estimated = words("memory.estimated")

    def row(key: str, cell: Cell, note: str = "") -> tuple[Value | Cell, ...]:
        return words(f"memory.{key}"), cell, note or (estimated if key in memory["estimated"] else "")

    parts = ("total_gib", "weights_gib", "activation_gib", "non_torch_gib", "graphs_gib", "kv_cache_gib")
    rows = [row(key, Cell(memory[key], "gib"), "") for key in parts]
    rows.insert(1, row("utilization", Cell(memory["utilization"], "share")))
    rows += [row(key, Cell(memory[key], "count")) for key in ("num_gpu_blocks", "block_size", "kv_tokens")]
    rows.append(row("kv_bytes_per_token", Cell(memory["kv_bytes_per_token"], "count")))
    rows.append(row("longest_context", Cell(memory["longest_context"], "count")))
    rows.append(row("max_concurrency", Cell(memory["max_concurrency"], "number"), _model_len(context, memory)))
    rows += _live_rows(context, memory)
    columns = (
        Column("part", words("column.part"), "text"),
        Column("value", words("column.value"), "number"),
        Column("note", words("column.note"), "text"),
    )
    note = words("table.memory.note", line=memory["max_concurrency_line"].replace("\n", "; "))
    return Table("memory", words("table.memory.title"), columns, tuple(rows), note, "T3")


def _model_len(context: Context, memory: Document) -> str:
    return context.words("memory.per_request", tokens=context.words.count(memory["max_model_len"]))


def _live_rows(context: Context, memory: Document) -> list[tuple[Value | Cell, ...]]:
    """Returns how many requests of the lengths that were really served would fit at once."""
    if context.shown is None or not context.shown.run.requests:
        return []
    words = context.words
    lengths = [each.num_prompt_tokens + each.num_output_tokens for each in context.shown.run.requests]
    found: list[tuple[Value | Cell, ...]] = []
    for key, tokens in (("mean", float(np.mean(lengths))), ("p95", float(np.percentile(lengths, 95)))):
        fits = Cell(memory["kv_tokens"] / max(tokens, 1.0), "number")
        found.append((words(f"memory.fits_{key}"), fits, words("memory.per_request", tokens=words.count(tokens))))
    return found


def cost_table(context: Context) -> Table:
    """Returns what tokens and users cost at the load that is the answer."""
    prices, words = context.prices, context.words
    assert prices is not None, "a table of costs needs prices"
    num_gpus = num_gpus_of(context.document)
    per_hour = prices.gpu_hour * num_gpus
    rows: list[tuple[Value | Cell, ...]] = [
        (words("cost.per_hour", gpus=num_gpus), Cell(per_hour, "money")),
        (words("cost.per_month"), Cell(per_hour * _HOURS_PER_MONTH, "money")),
    ]
    for key in ("output_tokens_per_s", "total_tokens_per_s"):
        cost = output_cost(context, key)
        if cost is not None:
            rows.append((words(f"cost.{key}"), Cell(cost, "money")))
    a_month = user_month_cost(context)
    if a_month is not None:
        rows.append((words("cost.per_user_month"), Cell(a_month, "money")))
    people = context.document["registered_people"]
    if people:
        rows.append((words("cost.per_person_month"), Cell(per_hour * _HOURS_PER_MONTH / people, "money")))
    columns = (
        Column("item", words("column.item"), "text"),
        Column("cost", words("column.cost"), "money", prices.currency),
    )
    price = words.value(prices.gpu_hour, "money")
    note = words("table.cost.note", price=price, currency=prices.currency, load=context.load(context.source.shown_load))
    return Table("cost", words("table.cost.title"), columns, tuple(rows), note)


def output_cost(context: Context, key: str = "output_tokens_per_s") -> float | None:
    """Returns the cost of a million tokens at the load that is the answer; None without prices or tokens."""
    point = context.shown_point
    rate = point["throughput"][key] if point is not None else None
    if context.prices is None or not rate:
        return None
    return context.prices.gpu_hour * num_gpus_of(context.document) / (3600 * float(rate)) * 1e6


def user_month_cost(context: Context) -> float | None:
    """Returns what the server costs a month for each user it supports; None without prices or users."""
    users = context.document["supported_users"]["value"] if context.source.unit == "users" else None
    if context.prices is None or not users:
        return None
    return context.prices.gpu_hour * num_gpus_of(context.document) * _HOURS_PER_MONTH / float(users)


def num_gpus_of(document: Document) -> int:
    """Returns the GPUs of a server, all replicas together."""
    count = 1
    for key in _PARALLEL:
        count *= document["server"][key]
    return count * int(document["server"].get("replicas", 1))
