"""The first screen: the answer, how sure it is, what binds, how far the nearest limits are, what would help most."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from reports.check_source import CheckSource
from reports.content import Change, Fact, Headline, Limit, Tone
from reports.context import Context
from reports.document import Document, is_plural
from reports.sections.sweep import latency_chart
from sim.capacity.loads import own_load
from sim.scenario.model import Objective

_MOST_LIMITS = 6
_LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")


def build_headline(context: Context, checks: Sequence[CheckSource] = ()) -> Headline:
    """Builds the first screen; spot checks against the live server say how far the step times were off."""
    answer, tone = _answer(context)
    changes, note = _changes(context)
    return Headline(
        answer=answer,
        tone=tone,
        lines=tuple(_lines(context)),
        binds=tuple(binding_sentences(context)),
        calibration=" ".join([calibration_sentence(context), *_checked(context, checks)]),
        calibrated=bool(context.document["calibrated"]),
        limits=tuple(_limits(context)),
        changes=changes,
        changes_note=note,
        facts=tuple(_facts(context)),
        chart=latency_chart(context, binding_latency(context)),
    )


def _checked(context: Context, checks: Sequence[CheckSource]) -> list[str]:
    words = context.words
    errors = [check.median_error for check in checks]
    return [words("checked.calibration", error=words.share(error, 2)) for error in errors if error is not None]


def binding_latency(context: Context) -> str:
    """Returns the latency that breaks first; TTFT when it is none."""
    metric = binding_metric(context)
    return metric if metric in _LATENCIES else "ttft"


def binding_metric(context: Context) -> str:
    """Returns the metric of the objective that breaks first; TTFT when none does."""
    text = context.document["binding_objective"]
    return next((each.metric for each in context.source.objectives if each.text == text), "ttft")


def _answer(context: Context) -> tuple[str, Tone]:
    document, words = context.document, context.words
    value = document["supported_users"]["value"]
    if document["search"] is None:
        return _single_answer(context)
    if value is None:
        return words("answer.interrupted"), "warn"
    if value == 0:
        return context.load(0), "bad"
    if document["search"]["ceiling_reached"]:
        return words("answer.at_least", load=context.load(value)), "good"
    return context.load(value), "good"


def _single_answer(context: Context) -> tuple[str, Tone]:
    words, point = context.words, context.shown_point
    if point is None:
        return words("answer.interrupted"), "warn"
    load = context.load(point["load"])
    load = load[0].upper() + load[1:]
    if not point["objectives"] and not point["overloaded"]:
        return words("answer.unjudged", load=load), "plain"
    met = point["objectives_met"]
    return words("answer.met" if met else "answer.not_met", load=load), "good" if met else "bad"


def _lines(context: Context) -> list[str]:
    document, words = context.document, context.words
    lines = []
    bounds = document["supported_users"]
    if bounds["value"] == 0:
        lines.append(words("headline.not_even", load=context.load(document["search"]["next_load"])))
    elif bounds["low"] is not None and bounds["high"] is not None:
        low, high = words.number(bounds["low"]), words.number(bounds["high"])
        key = "headline.interval_fit" if "fit" in bounds.get("covers", ()) else "headline.interval"
        lines.append(words(key, low=low, high=high, seeds=len(document["seeds"])))
    elif document["search"] is not None and document["search"]["ceiling_reached"]:
        lines.append(words("headline.ceiling", load=context.load(document["search"]["to"])))
    elif bounds["value"] is not None:
        lines.append(words("headline.one_seed"))
    lines += _planned(context)
    if document["registered_people"] is not None:
        share = words.share(document["active_share"])
        lines.append(words("headline.registered", people=words.count(document["registered_people"]), share=share))
    if document["objectives"]:
        lines.append(words("headline.objectives", objectives=", ".join(document["objectives"])))
    return [*lines, *_headroom(context)]


def _planned(context: Context) -> list[str]:
    """Says how much of the answer the load that the scenario itself names would take."""
    words, scenario, value = context.words, context.source.scenario, context.document["supported_users"]["value"]
    planned = own_load(scenario) if scenario is not None and scenario.search is not None else None
    if not planned or not value or context.source.unit == "context_tokens":  # whose own load is one of users
        return []
    return [words("headline.planned", load=context.load(planned), share=words.share(planned / value, 2))]


def _headroom(context: Context) -> list[str]:
    """Says what is left of the KV cache and of the seats at the busiest moment of this load."""
    words, point, seats = context.words, context.shown_point, context.seats
    if point is None or point["kv"]["max"] is None or not seats:
        return []
    kv, taken = words.share(max(0.0, 1 - point["kv"]["max"]), 2), point["running"]["max"]
    return [words("headline.headroom", kv=kv, free=max(0.0, seats - taken), seats=words.count(seats))]


def binding_sentences(context: Context) -> list[str]:
    """Says what stands in the way of more, with the numbers."""
    document, words, point = context.document, context.words, context.broken_point
    if point is None:
        nothing = "binds.nothing" if document["search"] is not None else "binds.nothing_single"
        return [words(nothing)] if document["points"] else []
    load = context.load(point["load"])
    broken = [each for each in point["objectives"] if each["met"] is False]
    said = []
    for each in broken:
        shown = objective_value(context, each["objective"], each["value"])
        key = "binds.broken_plural" if is_plural(each["name"]) else "binds.broken"
        said.append(words(key, load=load, name=each["name"], shown=shown, objective=each["objective"]))
    if not broken:
        said.append(words("binds.growing", load=load))
    resource = document["binding_resource"]
    if resource is not None:
        said.append(words(f"resource.{resource}.because", **_resource_values(context, point)))
        said.append(words("binds.cure", cure=words(f"resource.{resource}.cure")))
    return said


def _resource_values(context: Context, point: Document) -> dict[str, Any]:
    words, ollama, static = context.words, point.get("ollama", {}), point.get("static", {})
    return {
        "queue": words.milliseconds(point["queue_ms"]["p95"]),
        "ttft": words.milliseconds(point["ttft_ms"]["p95"]),
        "itl": words.milliseconds(point["itl_ms"]["p50"]),
        "running": point["running"]["mean"],
        "waiting": point["waiting"]["mean"],
        "most_running": point["running"]["max"],
        "seats": context.seats,
        "budget": words.count(context.flag("max_num_batched_tokens") or context.flag("num_batch")),
        "longest": words.count(context.document["memory"]["max_model_len"]),
        "kv_mean": words.share(point["kv"]["mean"]),
        "kv_max": words.share(point["kv"]["max"]),
        "busy": words.share(point["busy"]),
        "preemptions": point["preemptions_per_request"],
        "rejected": point["errors"].get("rejected", 0),
        "refused": point["errors"].get("refused", 0),
        "slot_wait": words.milliseconds(ollama.get("wait_for_slot", {}).get("mean_ms")),
        "load_wait": words.milliseconds(ollama.get("wait_for_load", {}).get("mean_ms")),
        "loads": ollama.get("loads"),
        "idle_seats": words.share(static.get("idle_seat_share")),
        "kv_waste": words.share(static.get("kv_waste_share")),
    }


def objective_value(context: Context, text: str, value: float | None) -> str:
    """Writes what was measured for an objective, in its own unit."""
    words = context.words
    objective = Objective.model_validate(text)
    if value is None:
        return words("word.no_data")
    if objective.metric in (*_LATENCIES, "duration"):
        return words.duration(value)
    return words.share(value) if objective.metric in ("errors", "goodput") else words.number(value)


def calibration_sentence(context: Context) -> str:
    """Says where the step times come from and how far they were off."""
    words, times = context.words, context.document["step_times"]
    if not context.document["calibrated"]:
        key = "calibration.analytical" if times["source"] == "analytical" else "calibration.prior"
        return words(key, source=times["source"])
    rows = [row for row in times["errors"] if row["held_out"] and row["error_percent"] is not None]
    seen = "held_out"
    if not rows:
        rows, seen = [row for row in times["errors"] if row["error_percent"] is not None], "fitted"
    if not rows:
        return words("calibration.unstated", source=times["source"])
    sizes = [abs(row["error_percent"]) / 100 for row in rows]
    middle, worst = words.share(median(sizes), 2), words.share(max(sizes), 2)
    return words(f"calibration.{seen}", source=times["source"], median=middle, worst=worst)


def _limits(context: Context) -> list[Limit]:
    """Returns how much of each limit is used at the load that is the answer, the nearest first."""
    point = context.shown_point
    if point is None:
        return []
    found = [*_objective_limits(context, point), *_server_limits(context, point)]
    return sorted(found, key=lambda limit: (-limit.used, limit.key))[:_MOST_LIMITS]


def _objective_limits(context: Context, point: Document) -> list[Limit]:
    words, limits = context.words, []
    for each in point["objectives"]:
        value, bound = each["value"], each["bound"]
        if value is None or not bound:
            continue
        at_most = "<=" in each["objective"]
        used = value / bound if at_most else (bound / value if value else 2.0)
        shown, limit = (objective_value(context, each["objective"], number) for number in (value, bound))
        limits.append(Limit(each["name"], each["name"], used, words("limit.of", value=shown, limit=limit)))
    return limits


def _server_limits(context: Context, point: Document) -> list[Limit]:
    words, limits = context.words, list[Limit]()
    seats, kv = context.seats, point["kv"]["max"]
    seated = "max_num_seqs" if context.kind == "vllm" else "seats"
    if point["running"]["max"] is not None and seats:
        text = words("limit.of", value=words.number(point["running"]["max"]), limit=words.count(seats))
        limits.append(Limit("max_num_seqs", words(f"limit.{seated}"), point["running"]["max"] / seats, text))
    if kv is not None:
        limits.append(Limit("kv_blocks", words("limit.kv_blocks"), kv, words.share(kv)))
    queue = context.flag("max_num_queued_reqs") or context.flag("OLLAMA_MAX_QUEUE")
    if queue is not None and point["waiting"]["max"] is not None:
        inside = point["waiting"]["max"] + point["running"]["max"]
        text = words("limit.of", value=words.number(inside), limit=words.count(queue))
        limits.append(Limit("max_num_queued_reqs", words("limit.max_num_queued_reqs"), inside / queue, text))
    if context.shown is not None:
        limits += _run_limits(context)
    return limits


def _run_limits(context: Context) -> list[Limit]:
    assert context.shown is not None, "limits of a run need its records"
    words, run = context.words, context.shown.run
    limits = []
    full = context.shown.metrics.server.full_step_share
    if full is not None:
        text = words("limit.full_steps", share=words.share(full))
        limits.append(Limit("token_budget", words("limit.token_budget"), full, text))
    longest = max((each.num_prompt_tokens + each.num_output_tokens for each in run.requests), default=0)
    model_len = context.document["memory"]["max_model_len"]
    text = words("limit.of", value=words.count(longest), limit=words.count(model_len))
    limits.append(Limit("max_model_len", words("limit.max_model_len"), longest / model_len, text))
    return limits


def _facts(context: Context) -> list[Fact]:
    """Returns the strip of numbers at the load that is the answer."""
    point, words = context.shown_point, context.words
    if point is None:
        return []

    def seconds(value: float | None) -> float | None:
        return None if value is None else value / 1000

    return [
        Fact("ttft_p50", words("fact.ttft_p50"), seconds(point["ttft_ms"]["p50"]), "seconds"),
        Fact("ttft_p99", words("fact.ttft_p99"), seconds(point["ttft_ms"]["p99"]), "seconds"),
        Fact("itl_p50", words("fact.itl_p50"), seconds(point["itl_ms"]["p50"]), "seconds"),
        Fact("itl_p99", words("fact.itl_p99"), seconds(point["itl_ms"]["p99"]), "seconds"),
        Fact("output_tokens", words("fact.output_tokens"), point["throughput"]["output_tokens_per_s"]),
        Fact("requests", words("fact.requests"), point["throughput"]["requests_per_s"]),
        Fact("running_max", words("fact.running_max"), point["running"]["max"]),
        Fact("hit_rate", words("fact.hit_rate"), point["prefix_hit_rate"], "share"),
        Fact("preemptions", words("fact.preemptions"), point["preemptions"]),
        Fact("goodput", words("fact.goodput"), point["goodput"], "share"),
    ]


def _changes(context: Context) -> tuple[tuple[Change, ...], str]:
    """Returns the three most useful changes that were simulated, or why there are none."""
    from reports.sections.what_if import best_changes  # noqa: PLC0415 - the two sections use each other

    words, what_if = context.words, context.source.what_if
    if what_if is None:
        binds = context.document["binding_resource"] is not None
        return (), words("what_if.not_simulated" if binds else "what_if.nothing_binds")
    changes = best_changes(context, 3)
    return changes, "" if changes else words("what_if.none_helps")
