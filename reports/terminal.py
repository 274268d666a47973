"""The result as text for a terminal: the answer first, then why not more, where it comes from, and each load tried."""

from __future__ import annotations

from typing import Any

from reports.document import Document, is_plural
from reports.fleet import fleet_lines
from reports.numbers import show
from reports.other_terminal import gpus_of_ollama, memory_title, other_limits, other_settings
from reports.step_split import step_split_lines

_WORDS = {
    "users": ("user", "users"),
    "requests_per_s": ("request/s", "requests/s"),
    "concurrency": ("concurrent request", "concurrent requests"),
    "context_tokens": ("token of context", "tokens of context"),
}
_INTERVAL = (
    "interval: Student's t of the loads at which each seed breaks; in 95 % of such searches it holds the mean that",
    "ever more seeds would give. It says nothing of the error of the step times",
)
_INTERVAL_OF_FIT = (
    "interval: 95 %, from how the loads at which each seed breaks differ, and how far they move with step times drawn",
    "from the profile's covariance. What the profile's form cannot express is in its errors alone",
)


def render(document: Document) -> str:
    """Returns the text, without colours and free of anything that depends on when or where it is made."""
    sections = [
        _headline(document),
        _why_not_more(document),
        _provenance(document),
        _table(document),
        other_limits(document),
        fleet_lines(document),
        step_split_lines(document),
        _memory(document),
        _warnings(document),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _headline(document: Document) -> list[str]:
    lines = [f"{document['scenario']}{_answer(document)}"]
    if document["objectives"]:
        means = f" (means over {len(document['seeds'])} seeds)" if len(document["seeds"]) > 1 else ""
        lines.append(f"  objectives{means}: {', '.join(_objectives(document))}")
    if document["registered_people"] is not None:
        lines.append(
            f"  registered people: about {document['registered_people']}, when {_percent(document['active_share'])} of "
            "them are at work at the same moment (active_share)"
        )
    return lines


def _objectives(document: Document) -> list[str]:
    """Returns each objective, with what was measured at the load that is the answer."""
    value = document["supported_users"]["value"]
    points = [point for point in document["points"] if document["search"] is None or point["load"] == value]
    if not points:
        return list(document["objectives"])
    return [f"{each['objective']} (is {each['shown'] or 'without data'})" for each in points[0]["objectives"]]


def _answer(document: Document) -> str:
    """Returns the answer, from the colon after the scenario's name on."""
    if document["search"] is None:
        return _single_answer(document)
    return f": {_searched_answer(document)}"


def _searched_answer(document: Document) -> str:
    value, search = document["supported_users"]["value"], document["search"]
    if value is None:
        held = [point["load"] for point in document["points"] if point["objectives_met"]]
        known = f"; everything held at {_load(max(held), document)}" if held else ""
        return f"interrupted, no answer{known}"
    if value == 0:
        return f"0 {_WORDS[document['unit']][1]}: not even {_load(search['next_load'], document)} is supported"
    if search["ceiling_reached"]:
        return f"at least {_load(value, document)} supported: the search ended there (search.to) and nothing broke"
    low, high = document["supported_users"]["low"], document["supported_users"]["high"]
    interval = f" (95 % interval {show(low)} to {show(high)})" if low is not None else " (one seed: no interval)"
    return f"{_load(value, document)} supported{interval}"


def _single_answer(document: Document) -> str:
    if not document["points"]:
        return ": interrupted, no result"
    point = document["points"][0]
    at = f" at {_load(point['load'], document)}: " if point["load"] is not None else ": "
    if not point["objectives"] and not point["overloaded"]:
        return f"{at}no objectives to judge"
    return f"{at}{'all objectives are met' if point['objectives_met'] else 'NOT supported'}"


def _why_not_more(document: Document) -> list[str]:
    if document["binding_objective"] is None:
        return []
    search, diagnosis = document["search"], document["diagnosis"]
    load = search["next_load"] if search else document["points"][0]["load"]
    point = next(point for point in document["points"] if point["load"] == load)
    broken = [each for each in point["objectives"] if each["met"] is False]
    at = f"at {_load(load, document)} " if load is not None else ""
    lines = ["Why not more" if search else "Why"]
    if broken:
        lines += [f"  {at}{_measured(each)}: {each['objective']}" for each in broken]
    else:
        lines.append(f"  {at}the queue grows as long as the load lasts, although the objectives hold in this run")
    if diagnosis:
        lines.append(f"  bound by {diagnosis['resource']}: {diagnosis['evidence']}")
        lines += [f"  {note}" for note in diagnosis["notes"]]
        lines.append(f"  to change it: {diagnosis['cure']}")
    return lines


def _measured(objective: Document) -> str:
    """Returns `ttft.p95 is 2.1 s`, `errors are 3 %`."""
    verb = "are" if is_plural(objective["name"]) else "is"
    return f"{objective['name']} {verb} {objective['shown'] or objective['note']}"


def _provenance(document: Document) -> list[str]:
    server, times = document["server"], document["step_times"]
    lines = ["Where the numbers come from"]
    if document["calibrated"]:
        lines.append(f"  step times: profile {times['source']}, fitted to a measured server; {_errors(times)}")
    elif times["source"] == "analytical":
        lines.append("  step times: UNCALIBRATED, an analytical roofline of the GPU and the model; no measurement")
    else:
        lines.append(f"  step times: UNCALIBRATED, profile {times['source']}, not fitted to this server")
    gpus, parallel = server["gpu"], _parallel(server)
    if server["kind"] == "ollama":
        gpus, parallel = gpus_of_ollama(server), ""
    replicas = f", {server['replicas']} replicas" if "replicas" in server else ""
    lines.append(f"  server: {server['kind']} {server['version']}, {server['model']} on {gpus}{parallel}{replicas}")
    lines.append(f"  flags: {_flags(server['flags'])}")
    lines.append(f"  runs: {_runs(document)}")
    if document["points"]:
        lines.append(f"  {_window(document)}")
    if document["supported_users"]["low"] is not None:
        text = _INTERVAL_OF_FIT if "fit" in document["supported_users"].get("covers", ()) else _INTERVAL
        lines += [f"  {text[0]}", f"    {text[1]}"]
    return lines


def _parallel(server: Document) -> str:
    sizes = (("TP", "tensor_parallel_size"), ("PP", "pipeline_parallel_size"), ("DP", "data_parallel_size"))
    return "".join(f" {short}{server[name]}" for short, name in sizes if server[name] > 1)


def _window(document: Document) -> str:
    """Returns what the numbers describe; where each load has a window of its own, that of the answer."""
    value = document["supported_users"]["value"]
    at_answer = [point["window"] for point in document["points"] if point["load"] == value]
    return str((at_answer or [document["points"][-1]["window"]])[0])


def _errors(times: Document) -> str:
    """Sums up how far the profile was off: on runs it had not seen, if there are any."""
    rows = [row for row in times["errors"] if row["held_out"] and row["error_percent"] is not None]
    seen = "runs left out of the fit"
    if not rows:
        rows, seen = [row for row in times["errors"] if row["error_percent"] is not None], "the runs it was fitted to"
    if not rows:
        return "errors not stated"
    sizes = sorted(abs(row["error_percent"]) for row in rows)
    return f"errors on {seen}: median {show(sizes[len(sizes) // 2])} %, largest {show(sizes[-1])} %"


def _flags(flags: Document) -> str:
    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
    shown = [
        f"{name} {flags[name]['value']}{' (default)' if flags[name]['default'] else ''}"
        for name in names
        if name in flags
    ]
    return ", ".join(shown or other_settings(flags))


def _runs(document: Document) -> str:
    seeds = document["seeds"]
    named = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    if document["search"] is None:
        return f"{len(seeds)}, {named}"
    value, after = document["supported_users"]["value"], document["search"]["next_load"]
    enclosed = f"; {show(value)} holds, the next load tried, {show(after)}, does not" if value and after else ""
    return f"{document['search']['num_runs']}, {named}, the same requests at every load{enclosed}"


_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("load", ("load",)),
    ("TTFT p50", ("ttft_ms", "p50")),
    ("p95", ("ttft_ms", "p95")),
    ("p99", ("ttft_ms", "p99")),
    ("ITL p50", ("itl_ms", "p50")),
    ("p95", ("itl_ms", "p95")),
    ("p99", ("itl_ms", "p99")),
    ("E2EL p95", ("e2el_ms", "p95")),
    ("req/s", ("throughput", "requests_per_s")),
    ("out tok/s", ("throughput", "output_tokens_per_s")),
    ("running", ("running", "mean")),
    ("waiting", ("waiting", "mean")),
    ("KV %", ("kv", "mean")),
    ("max", ("kv", "max")),
    ("preempt", ("preemptions",)),
    ("hit %", ("prefix_hit_rate",)),
    ("good %", ("goodput",)),
)
_SHARES = {"KV %", "max", "hit %", "good %"}


def _table(document: Document) -> list[str]:
    """Returns one row a load tried; latencies in ms, every number the mean over the seeds."""
    if not document["points"]:
        return []
    header = [title for title, _ in _COLUMNS] + ["seeds", "objectives"]
    rows = [header] + [_row(point) for point in document["points"]]
    widths = [max(len(row[index]) for row in rows) for index in range(len(header))]
    unit = _WORDS[document["unit"]][1]
    lines = [f"Each load tried (load in {unit}, latencies in ms, means over the seeds)"]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append(f"  {'  '.join(cells)}  {row[-1]}")
    return lines


def _row(point: Document) -> list[str]:
    cells = []
    for title, path in _COLUMNS:
        value: Any = point
        for key in path:
            value = value[key]
        cells.append(show(100 * value if title in _SHARES and value is not None else value))
    return [*cells, str(len(point["seeds"])), _verdict(point)]


def _verdict(point: Document) -> str:
    broken = [each["name"] for each in point["objectives"] if each["met"] is False]
    if broken:
        return f"broken: {', '.join(broken)}"
    if point["overloaded"]:
        return "overloaded"
    unjudged = [each["name"] for each in point["objectives"] if each["met"] is None]
    if unjudged:
        return f"met (no data: {', '.join(unjudged)})"
    return "met" if point["objectives"] else "-"


def _memory(document: Document) -> list[str]:
    memory = document["memory"]

    def gib(name: str) -> str:
        return f"{memory[name]:.2f}{'~' if name in memory['estimated'] else ''}"

    taken = ", ".join(
        f"{label} {gib(f'{name}_gib')}"
        for label, name in (
            ("weights", "weights"),
            ("activation", "activation"),
            ("non-torch", "non_torch"),
            ("graphs", "graphs"),
        )
    )
    lines = [
        memory_title(document),
        f"  {gib('total_gib')} x {show(memory['utilization'])}: {taken}, KV cache {gib('kv_cache_gib')}",
        f"  {memory['num_gpu_blocks']} blocks of {memory['block_size']}: {memory['kv_tokens']:,} tokens, "
        f"longest context that fits {memory['longest_context']:,}",
    ]
    return [*lines, *(f"  {line}" for line in memory["max_concurrency_line"].splitlines())]


def _warnings(document: Document) -> list[str]:
    said = [*document["notes"], *document["warnings"]]
    return ["Warnings", *(f"  {text}" for text in said)] if said else []


def _load(load: float | None, document: Document) -> str:
    if load is None:
        return "its own load"
    return f"{show(load)} {_WORDS[document['unit']][load != 1]}"


def _percent(share: float) -> str:
    return f"{show(100 * share)} %"
