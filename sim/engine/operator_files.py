"""Reads operator tables in the format of LLMServingSim's profiler (github.com/casys-kaist/LLMServingSim, profiler/).

A folder holds `dense.csv` (layer, tokens, time_us), `per_sequence.csv` (layer, sequences, time_us), `attention.csv`
(prefill_chunk, kv_prefill, n_decode, kv_decode, time_us) and, for a mixture of experts, `moe.csv` (tokens,
activated_experts, time_us), each also as .gz. Times are microseconds of one layer on one GPU; with tensor parallelism
they are of one GPU's share, without the collectives.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from sim.engine.operator_table import AttentionTable, ExpertTable, OperatorTables, Tree, tree_of
from sim.errors import UserError
from sim.models import ModelSpec

_ONCE = ("embedding", "final_layernorm")
_TWICE = ("layernorm",)
"""Operators outside the layers, and those that each layer runs twice (before attention and before the MLP)."""


def read_operator_tables(folder: Path, model: ModelSpec, expert_parallel_size: int = 1) -> OperatorTables:
    """Reads the tables of a model.

    Args:
        folder: where they lie.
        model: its layers and experts.
        expert_parallel_size: GPUs over which the experts of a layer are spread.

    Raises:
        UserError: a file is missing or not as described.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of operator tables")
    dense = _by_layer(folder, "dense", ("layer", "tokens", "time_us"))
    sequences = _by_layer(folder, "per_sequence", ("layer", "sequences", "time_us"))
    return OperatorTables(
        num_layers=model.num_layers,
        layer=_total(folder, {name: points for name, points in dense.items() if name not in _ONCE}),
        once=_total(folder, {name: points for name, points in dense.items() if name in _ONCE}),
        sequences=_total(folder, sequences),
        attention=_attention(folder),
        experts=_experts(folder, model, expert_parallel_size) if model.is_moe else None,
    )


def _attention(folder: Path) -> AttentionTable:
    rows = _rows(folder, "attention", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"))
    chunks = [((q, c), 1e3 * us) for q, c, n, _, us in rows if q and not n]
    decodes = [((n, d), 1e3 * us) for q, _, n, d, us in rows if n and not q]
    both = [((q, c, n, d), 1e3 * us) for q, c, n, d, us in rows if q and n]
    if not (chunks and decodes and both):
        raise UserError(f"{_find(folder, 'attention')}: expected rows of chunks alone, of decodes alone and of both")
    return AttentionTable(tree_of(chunks), tree_of(decodes), tree_of(both))


def _experts(folder: Path, model: ModelSpec, expert_parallel_size: int) -> ExpertTable:
    rows = _rows(folder, "moe", ("tokens", "activated_experts", "time_us"))
    return ExpertTable(
        time_ns=tree_of(((tokens, experts), 1e3 * us) for tokens, experts, us in rows),
        num_experts=model.num_experts,
        experts_per_token=model.num_experts_per_tok,
        ranks=expert_parallel_size,
    )


def _total(folder: Path, operators: Mapping[str, Mapping[float, float]]) -> Tree:
    """Adds the operators up, each at the counts at which all of them were measured."""
    if not operators:
        raise UserError(f"{folder}: no operators; expected rows of {', '.join((*_ONCE, *_TWICE))} and the others")
    counts = sorted(set.intersection(*(set(points) for points in operators.values())))
    if not counts:
        raise UserError(f"{folder}: the operators have no count in common")
    times = [sum((2 if name in _TWICE else 1) * points[n] for name, points in operators.items()) for n in counts]
    return tuple(counts), tuple(1e3 * us for us in times)


def _by_layer(folder: Path, name: str, columns: Sequence[str]) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for layer, count, us in _cells(folder, name, columns):
        found.setdefault(layer, {})[float(count)] = float(us)
    return found


def _rows(folder: Path, name: str, columns: Sequence[str]) -> list[tuple[float, ...]]:
    return [tuple(map(float, row)) for row in _cells(folder, name, columns)]


def _cells(folder: Path, name: str, columns: Sequence[str]) -> list[list[str]]:
    """Returns the cells of a file's rows, all but the names checked to be numbers."""
    path = _find(folder, name)
    try:
        with (gzip.open if path.suffix == ".gz" else Path.open)(path, "rt") as file:
            rows = list(csv.reader(file))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not rows or rows[0] != list(columns):
        got = ", ".join(rows[0]) if rows else "nothing"
        raise UserError(f"{path}:1:1: expected the columns {', '.join(columns)}; got {got}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(columns) or not all(map(_is_number, row[columns[0] == "layer" :])):
            raise UserError(f"{path}:{number}:1: got {','.join(row)}; expected {', '.join(columns)}")
    return rows[1:]


def _is_number(cell: str) -> bool:
    try:
        return float(cell) >= 0
    except ValueError:
        return False


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
        if path.is_file():
            return path
    raise UserError(f"{folder}: no {name}.csv (or {name}.csv.gz)")
