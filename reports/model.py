"""The content of a report, built once: `build_report(sources, words)`. Start reading here.

The order is that of a reader's questions: the answer; why not more; what would help; every load tried; one run closely;
the server; who asks; where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.content import Report, Section
from reports.context import Context, Prices
from reports.sections.comparison import comparison_section
from reports.sections.headline import binding_latency, build_headline
from reports.sections.measured import measured_section
from reports.sections.one_run import one_run_section
from reports.sections.provenance import provenance_section
from reports.sections.server import server_section
from reports.sections.sweep import sweep_section
from reports.sections.what_if import what_if_section
from reports.sections.why import why_section
from reports.sections.workload import workload_section
from reports.snapshots import Metrics
from reports.source import Source
from reports.words import Words


def build_report(
    sources: Sequence[Source], words: Words, prices: Prices | None = None, measured: Metrics | None = None
) -> Report:
    """Builds the report of one run or search, or of several side by side.

    Args:
        sources: what was found; the first is what the others are compared with.
        words: the language.
        prices: what a GPU costs, when costs are wanted.
        measured: what a real server did, to be shown beside a single run.
    """
    assert sources, "a report needs a run"
    if len(sources) == 1:
        return _single(Context.of(sources[0], words, prices), measured)
    return _comparison([Context(source, words, None, None, prices) for source in sources])


def _single(context: Context, measured: Metrics | None) -> Report:
    words, document = context.words, context.document
    sections = (
        why_section(context),
        what_if_section(context),
        sweep_section(context, binding_latency(context)),
        one_run_section(context),
        server_section(context),
        workload_section(context),
        measured_section(context, measured) if measured is not None else None,
        provenance_section(context),
    )
    scenario = context.source.scenario
    return Report(
        title=words("report.title", scenario=document["scenario"]),
        subtitle=_server_line(context) if scenario is None or not scenario.description else scenario.description,
        lang=words.lang,
        headline=build_headline(context),
        sections=tuple(section for section in sections if section is not None),
        footer=_footer(context),
    )


def _comparison(contexts: list[Context]) -> Report:
    words = contexts[0].words
    names = ", ".join(context.source.name for context in contexts)
    sections: list[Section] = [comparison_section(contexts)]
    return Report(
        title=words("report.comparison", runs=names),
        subtitle=words("report.comparison_subtitle", first=contexts[0].source.name),
        lang=words.lang,
        headline=None,
        sections=tuple(sections),
        footer=_footer(contexts[0]),
    )


def _server_line(context: Context) -> str:
    server = context.document["server"]
    return f"{server['kind']} {server['version']}, {server['model']}, {server['gpu']}"


def _footer(context: Context) -> tuple[str, ...]:
    words, document = context.words, context.document
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return (
        words("footer.made", versions=versions),
        words("footer.scenario", hash=document["scenario_hash"][:16]),
        words("footer.units"),
    )
