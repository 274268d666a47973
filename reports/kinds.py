"""Several kinds of server side by side: the document of `headcount compare --json`, and its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from reports.document import Document, build_document, point_document
from reports.numbers import show
from sim.capacity.kinds import KindResult
from sim.deployment import Deployment
from sim.ollama_deployment import OllamaDeployment

FORMAT = 1

VLLM_START_S = 45.0
"""What a start of vLLM takes beside reading the weights: profiling, compilation from its cache, CUDA graphs. An
assumption: logs show half a minute to two minutes."""

_UNIT_WORDS = {
    "users": "users", "requests_per_s": "requests/s", "concurrency": "concurrent requests",
    "context_tokens": "tokens of context",
}  # fmt: skip

_WIDTH = 26


def build_comparison(found: Sequence[KindResult]) -> Document:
    """Returns what was found for each kind, and all of them at the same loads."""
    return {
        "format": FORMAT,
        "scenario": found[0].scenario.name,
        "unit": next((each.result.unit for each in found if each.result is not None), None),
        "kinds": [
            {
                "kind": each.kind,
                "problem": each.problem,
                "holds": _holds(each),
                "result": _result(each),
                "same_loads": [point_document(point) for point in each.same_loads],
            }
            for each in found
        ],
    }


def _result(each: KindResult) -> Document | None:
    if each.result is None or each.deployment is None:
        return None
    return build_document(each.scenario, each.deployment, each.result)


def _holds(each: KindResult) -> Document | None:
    """Returns what the server takes for itself: GPUs, memory at no load, and the time until it is ready again."""
    deployment, server = each.deployment, each.scenario.server
    if deployment is None:
        return None
    disk = server.ollama.disk_bytes_per_s
    if isinstance(deployment, OllamaDeployment):
        first = deployment.models[0]
        return {
            "gpus": server.num_gpus,
            "dedicated": False,
            "memory_gib": _round(first.placement.gpu_bytes / 2**30),
            "until": "loaded" if first.keep_alive_ns is None else "idle for keep_alive",
            "ready_after_s": _round(first.load_ns / 1e9),
            "ready_after_is_estimate": server.ollama.load_time is None,
        }
    return _dedicated(deployment, server.num_gpus, disk)


def _dedicated(deployment: Deployment, num_gpus: int, disk_bytes_per_s: float) -> Document:
    memory = deployment.memory
    weights = memory.weights_gib * 2**30 * num_gpus
    return {
        "gpus": num_gpus,
        "dedicated": True,
        "memory_gib": _round(memory.total_gib * memory.utilization * num_gpus),
        "until": "stopped",
        "ready_after_s": _round(VLLM_START_S + weights / disk_bytes_per_s),
        "ready_after_is_estimate": True,
    }


def _round(value: float) -> float:
    return float(f"{value:.3g}")


# ---- text ----


def render_comparison(document: Document) -> str:
    """Returns the comparison as text, a column for each kind."""
    kinds = document["kinds"]
    word = "kinds" if len(kinds) > 1 else "kind"
    lines = [f"{document['scenario']}: the same requests and objectives on {len(kinds)} {word} of server", ""]
    lines += [_server_line(each) for each in kinds]
    ran = [each for each in kinds if each["result"] is not None]
    if ran:
        lines += ["", _row("", [each["kind"] for each in ran]), *_answers(document, ran)]
        lines += ["", _row("What the server holds", ["" for _ in ran]), *_held(ran)]
        for index in range(len(ran[0]["same_loads"])):
            lines += ["", *_at_one_load(document, ran, index)]
    notes = [f"  {each['kind']}: {text}" for each in ran for text in each["result"]["warnings"]]
    return "\n".join([*lines, *(["", "Warnings", *notes] if notes else [])]) + "\n"


def _server_line(each: Document) -> str:
    if each["result"] is None:
        return f"  {each['kind']}: no result: {each['problem']}"
    server, result = each["result"]["server"], each["result"]
    gpus = server["tensor_parallel_size"] * server["pipeline_parallel_size"] * server["data_parallel_size"]
    gpus *= server.get("replicas", 1)
    source = result["step_times"]["source"] + ("" if result["calibrated"] else ", UNCALIBRATED")
    per_gpu = "" if each["kind"] == "ollama" or gpus == 1 else " a GPU"
    weights = f"{show(result['memory']['weights_gib'])} GiB of weights{per_gpu}"
    version = "" if each["kind"] == "static" else f" {server['version']}"
    return f"  {each['kind']}{version}: {server['model']}, {weights}, on {gpus} x {server['gpu']}; step times: {source}"


def _answers(document: Document, ran: Sequence[Document]) -> list[str]:
    results = [each["result"] for each in ran]
    if results[0]["search"] is None:
        return [
            _row("objectives", ["met" if each["objectives_met"] else "NOT met" for each in results]),
            _row("  broken", [each["binding_objective"] or "-" for each in results]),
            _row("  bound by", [each["binding_resource"] or "-" for each in results]),
        ]
    unit = _UNIT_WORDS[document["unit"]]
    rows: list[tuple[str, Callable[[Document], str]]] = [
        (f"supported {unit}", _supported),
        ("  95 % interval", lambda each: _interval(each["supported_users"])),
        ("  it covers", lambda each: " + ".join(each["supported_users"]["covers"]) or "-"),
        ("  breaks at", lambda each: show(each["search"]["next_load"])),
        ("  broken there", lambda each: each["binding_objective"] or "-"),
        ("  bound by", lambda each: each["binding_resource"] or "-"),
    ]
    return [_row(title, [value(each) for each in results]) for title, value in rows]


def _supported(result: Document) -> str:
    value = show(result["supported_users"]["value"])
    return f"at least {value}" if result["search"]["ceiling_reached"] else value


def _interval(supported: Document) -> str:
    if supported["low"] is None:
        return "-"
    return f"{show(supported['low'])} to {show(supported['high'])}" if supported["high"] is not None else "-"


def _held(ran: Sequence[Document]) -> list[str]:
    holds = [each["holds"] for each in ran]
    return [
        _row("  GPUs", [f"{each['gpus']}{' (its own)' if each['dedicated'] else ' (shared)'}" for each in holds]),
        _row("  memory at no load", [f"{show(each['memory_gib'])} GiB" for each in holds]),
        _row("  given back when", [each["until"] for each in holds]),
        _row(
            "  ready after a restart",
            [f"{show(each['ready_after_s'])} s{'~' if each['ready_after_is_estimate'] else ''}" for each in holds],
        ),
    ]


_ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("TTFT p50", ("ttft_ms", "p50"), "ms"),
    ("TTFT p95", ("ttft_ms", "p95"), "ms"),
    ("ITL p50", ("itl_ms", "p50"), "ms"),
    ("ITL p95", ("itl_ms", "p95"), "ms"),
    ("E2EL p95", ("e2el_ms", "p95"), "ms"),
    ("queue p95", ("queue_ms", "p95"), "ms"),
    ("requests/s", ("throughput", "requests_per_s"), ""),
    ("output tokens/s", ("throughput", "output_tokens_per_s"), ""),
    ("running", ("running", "mean"), ""),
    ("waiting", ("waiting", "mean"), ""),
    ("prefix hits", ("prefix_hit_rate",), "%"),
    ("goodput", ("goodput",), "%"),
    ("errors", ("errors", "share"), "%"),
)


def _at_one_load(document: Document, ran: Sequence[Document], index: int) -> list[str]:
    points = [each["same_loads"][index] for each in ran]
    load = points[0]["load"]
    unit = _UNIT_WORDS[document["unit"]]
    title = "All of them" if load is None else f"All at {show(load)} {unit.removesuffix('s') if load == 1 else unit}"
    lines = [_row(title, ["" for _ in ran])]
    for name, path, kind in _ROWS:
        lines.append(_row(f"  {name}", [_value(_at(point, path), kind) for point in points]))
    verdicts = ["met" if point["objectives_met"] else "broken" for point in points]
    return [*lines, _row("  objectives", verdicts)]


def _at(point: Document, path: tuple[str, ...]) -> Any:
    value: Any = point
    for key in path:
        value = value[key]
    return value


def _value(value: float | None, kind: str) -> str:
    if value is None:
        return "-"
    match kind:
        case "ms":
            return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"
        case "%":
            return f"{show(100 * value)} %"
    return show(value)


def _row(title: str, cells: Sequence[str]) -> str:
    return f"{title:<{_WIDTH}}{''.join(f'{cell:>{_WIDTH}}' for cell in cells)}".rstrip()
