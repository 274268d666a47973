"""Why not more: what binds, and what users would notice first (T7)."""

from __future__ import annotations

from reports.content import Block, Finding, Findings, Paragraph, Section
from reports.context import Context
from reports.diagnosis import find_other_symptoms, find_symptoms
from reports.sections.headline import binding_metric
from reports.source import Detail

_OF_METRIC = {
    "ttft": ("first_word", "saturated", "evicted", "caching_off", "bursts"),
    "queue": ("first_word", "saturated", "bursts"),
    "itl": ("freeze", "stop_resume", "all_slower"),
    "tpot": ("freeze", "stop_resume", "all_slower"),
    "e2el": ("all_slower", "saturated", "stop_resume"),
    "errors": ("never_fits", "refused", "rejected", "timed_out", "ollama_busy"),
    "preemptions": ("stop_resume",),
}
"""Which symptoms explain what binds: they come first."""


def why_section(context: Context) -> Section:
    """Builds the section on what stands in the way."""
    words = context.words
    blocks: list[Block] = []
    detail = context.broken or context.shown
    if detail is None:
        interrupted = context.source.shown_load is None and context.document["search"] is not None
        blocks.append(Paragraph(words("why.interrupted" if interrupted else "why.no_records"), "warn"))
        return Section("why", words("section.why"), tuple(blocks))
    findings = findings_of(context, detail)
    which = context.caption(detail)
    blocks.append(Paragraph(words("why.symptoms" if findings else "why.no_symptoms", run=which)))
    if findings:
        blocks.append(Findings(findings))
    return Section("why", words("section.why"), tuple(blocks))


def findings_of(context: Context, detail: Detail) -> tuple[Finding, ...]:
    """Returns the symptoms of a run in words; T7."""
    words = context.words
    if context.kind == "vllm":
        caching = bool(context.flag("enable_prefix_caching"))
        symptoms = find_symptoms(detail, context.source.objectives, prefix_caching=caching)
    else:
        symptoms = find_other_symptoms(detail, context.source.point(detail.load) or {})
    metric = binding_metric(context)
    symptoms.sort(key=lambda symptom: not symptom.key.startswith(_OF_METRIC.get(metric, ())))
    return tuple(
        Finding(
            key=each.key,
            symptom=each.text(words, "symptom"),
            cause=each.text(words, "cause"),
            evidence=each.text(words, "evidence"),
            cure=each.text(words, "cure"),
        )
        for each in symptoms
    )
