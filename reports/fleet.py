"""Several replicas in a result: the part of each load that the document holds, and what a terminal shows of it."""

from __future__ import annotations

from typing import Any

from reports.numbers import mean_of, show
from sim.capacity import Point
from sim.scenario.model import Server

Document = dict[str, Any]

_TOTALS = (
    "mean_up", "most_up", "fewest_up", "replica_hours", "num_failures", "num_starts", "num_lost", "num_retries",
    "num_rerouted", "rerouted_delay_ms",
)  # fmt: skip
_EACH = (
    "up_s", "num_requests", "num_lost", "ttft_p95_ms", "output_tokens_per_s", "busy", "running", "waiting", "kv",
    "kv_max", "prefix_hit_rate", "num_preemptions",
)  # fmt: skip
_COLUMNS = (
    ("replica", "replica", 1), ("requests", "num_requests", 1), ("lost", "num_lost", 1), ("TTFT p95", "ttft_p95_ms", 1),
    ("out tok/s", "output_tokens_per_s", 1), ("busy %", "busy", 100), ("running", "running", 1),
    ("waiting", "waiting", 1), ("KV %", "kv", 100), ("max", "kv_max", 100), ("hit %", "prefix_hit_rate", 100),
    ("up s", "up_s", 1),
)  # fmt: skip


def fleet_settings(server: Server) -> Document:
    """Returns what the document's `server` says of a server with several replicas; nothing of one with one."""
    if not server.is_fleet:
        return {}
    if server.data_parallel_size > 1:
        return {"router": "vLLM's own"}
    found: Document = {"replicas": server.replicas, "router": server.router}
    if server.autoscaling is not None:
        found["autoscaling"] = server.autoscaling.model_dump(mode="json")
    if server.failures:
        found["failures"] = [failure.model_dump(mode="json") for failure in server.failures]
    if server.model_switch is not None:
        found["model_switch"] = server.model_switch.model_dump(mode="json")
    return found


def fleet(point: Point) -> Document:
    """Returns `fleet` for a load: all replicas and each of them, means over the seeds; nothing where there is one.

    A replica that an autoscaler started with some seeds only counts with those.
    """
    uses = [run.fleet for run in point.runs if run.fleet is not None]
    if not uses:
        return {}
    each = []
    for number in range(max(len(use.replicas) for use in uses)):
        present = [use.replicas[number] for use in uses if number < len(use.replicas)]
        each.append({"replica": number, **{name: mean_of(present, name) for name in _EACH}})
    return {"fleet": {**{name: mean_of(uses, name) for name in _TOTALS}, "replicas": each}}


def fleet_lines(document: Document) -> list[str]:
    """Returns a table of the replicas at the load that is the answer, and what failures cost."""
    value = document["supported_users"]["value"]
    points = [point for point in document["points"] if document["search"] is None or point["load"] == value]
    if not points or "fleet" not in points[0]:
        return []
    point, use = points[0], points[0]["fleet"]
    at = "" if point["load"] is None else f" at load {show(point['load'])}"
    kind = "Replicas" if "replicas" in document["server"] else "Data-parallel engines"
    lines = [f"{kind}{at} (router {document['server']['router']}; latencies in ms, means over the seeds)"]
    rows = [[title for title, _, _ in _COLUMNS]]
    rows += [[show(_times(each[key], factor)) for _, key, factor in _COLUMNS] for each in use["replicas"]]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_COLUMNS))]
    lines += [f"  {'  '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))}" for row in rows]
    if use["fewest_up"] != use["most_up"] or use["num_starts"]:
        lines.append(
            f"  replicas up: {show(use['mean_up'])} on average, {show(use['fewest_up'])} to {show(use['most_up'])}; "
            f"{show(use['num_starts'])} starts; {show(use['replica_hours'])} replica hours in the whole run"
        )
    if use["num_failures"] or use["num_lost"] or use["num_rerouted"]:
        delay = (
            f", {show(use['rerouted_delay_ms'])} ms later on average" if use["rerouted_delay_ms"] is not None else ""
        )
        lines.append(
            f"  failures: {show(use['num_failures'])}; requests lost {show(use['num_lost'])}, tried again by clients "
            f"{show(use['num_retries'])}, "
            f"sent to another replica {show(use['num_rerouted'])}{delay}"
        )
    return lines


def _times(value: float | None, factor: int) -> float | None:
    return None if value is None else value * factor
