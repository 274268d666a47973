"""The content of a report, built once: `build_report(sources, words)`. Start reading here.

The order is that of a reader's questions: the answer; why not more; what would help; every load tried; one run closely;
the server; who asks; where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.check_source import CheckSource
from reports.content import Chart, Headline, Report, Section
from reports.context import Context, Prices
from reports.sections.checked import checked_headline, checked_section
from reports.sections.comparison import comparison_section
from reports.sections.headline import binding_latency, build_headline
from reports.sections.measured import measured_section, snapshot_section
from reports.sections.one_run import one_run_section
from reports.sections.provenance import provenance_section
from reports.sections.server import server_section
from reports.sections.sweep import sweep_section
from reports.sections.swept import swept_headline, swept_section
from reports.sections.what_if import what_if_section
from reports.sections.why import why_section
from reports.sections.workload import workload_section
from reports.snapshots import Metrics
from reports.source import Source
from reports.sweep_source import SweepSource
from reports.words import Words


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside runs in a report, or makes one of its own.

    Attributes:
        measured: what a real server did, from its /metrics.
        sweeps: combinations of settings.
        checks: live servers beside their simulation.
    """

    measured: Metrics | None = None
    sweeps: tuple[SweepSource, ...] = ()
    checks: tuple[CheckSource, ...] = ()


def build_report(
    sources: Sequence[Source], words: Words, prices: Prices | None = None, beside: Beside | None = None
) -> Report:
    """Builds the report of one run or search, of several side by side, or of what stands beside runs alone.

    Args:
        sources: what was found; the first is what the others are compared with.
        words: the language.
        prices: what a GPU costs, when costs are wanted.
        beside: sweeps, spot checks, a measured server.
    """
    beside = beside or Beside()
    if len(sources) == 1:
        return _single(Context.of(sources[0], words, prices), beside)
    if sources:
        return _comparison([Context(source, words, None, None, prices) for source in sources], beside)
    return _without_runs(words, beside)


def _single(context: Context, beside: Beside) -> Report:
    words, document = context.words, context.document
    sections = (
        why_section(context),
        what_if_section(context),
        sweep_section(context, binding_latency(context)),
        one_run_section(context),
        server_section(context),
        workload_section(context),
        measured_section(context, beside.measured) if beside.measured is not None else None,
        *_sections(words, beside),
        provenance_section(context),
    )
    scenario = context.source.scenario
    return Report(
        title=words("report.title", scenario=document["scenario"]),
        subtitle=_server_line(context) if scenario is None or not scenario.description else scenario.description,
        lang=words.lang,
        headline=build_headline(context, beside.checks),
        sections=tuple(section for section in sections if section is not None),
        footer=_footer(context),
    )


def _comparison(contexts: list[Context], beside: Beside) -> Report:
    words = contexts[0].words
    names = ", ".join(context.source.name for context in contexts)
    return Report(
        title=words("report.comparison", runs=names),
        subtitle=words("report.comparison_subtitle", first=contexts[0].source.name),
        lang=words.lang,
        headline=None,
        sections=(comparison_section(contexts), *_sections(words, beside)),
        footer=_footer(contexts[0]),
    )


def _without_runs(words: Words, beside: Beside) -> Report:
    """Builds a report of sweeps, spot checks and snapshots: the first of them is on the first screen."""
    headline: Headline | None = None
    if beside.sweeps:
        headline, name = swept_headline(beside.sweeps[0], words), beside.sweeps[0].name
    elif beside.checks:
        headline, name = checked_headline(beside.checks[0], words), beside.checks[0].name
    else:
        name = words("section.snapshot")
    sections = _sections(words, beside, headline.chart if headline is not None else None)
    if beside.measured is not None:
        sections = (*sections, snapshot_section(words, beside.measured))
    return Report(
        title=words("report.title", scenario=name),
        subtitle=", ".join(section.title for section in sections),
        lang=words.lang,
        headline=headline,
        sections=sections,
        footer=(words("footer.units"),),
    )


def _sections(words: Words, beside: Beside, shown: Chart | None = None) -> tuple[Section, ...]:
    sweeps = [swept_section(sweep, words, shown) for sweep in beside.sweeps]
    return (*sweeps, *(checked_section(check, words, shown) for check in beside.checks))


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
