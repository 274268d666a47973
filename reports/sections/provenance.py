"""Where the numbers come from: step times and their errors (T9), seeds, versions, warnings."""

from __future__ import annotations

from reports.content import Block, Cell, Column, Paragraph, Section, Table, Tone, Value
from reports.context import Context
from reports.sections.headline import calibration_sentence
from sim.deployment import plan
from sim.engine.profile import Profile
from sim.engine.profile_terms import Estimate
from sim.errors import UserError


def provenance_section(context: Context) -> Section:
    """Builds the section on calibration, method and versions."""
    words, document = context.words, context.document
    tone: Tone = "plain" if document["calibrated"] else "warn"
    blocks: list[Block] = [Paragraph(calibration_sentence(context), tone)]
    if document["step_times"]["description"]:
        blocks.append(Paragraph(document["step_times"]["description"]))
    blocks += _tables(context)
    if document["supported_users"]["low"] is not None:
        of_fit = "fit" in document["supported_users"].get("covers", ())
        blocks.append(Paragraph(words("provenance.interval_fit" if of_fit else "provenance.interval")))
    blocks.append(Paragraph(words("provenance.seeds", seeds=", ".join(str(seed) for seed in document["seeds"]))))
    if document["points"]:
        blocks.append(Paragraph(words("provenance.window", window=words.said(document["points"][-1]["window"]))))
    blocks += [Paragraph(words.said(text), "warn") for text in (*document["notes"], *document["warnings"])]
    return Section("provenance", words("section.provenance"), tuple(blocks))


def _tables(context: Context) -> list[Table]:
    errors = context.document["step_times"]["errors"]
    tables = [error_table(context)] if errors else []
    profile = _profile(context)
    if profile is not None:
        tables.append(coefficient_table(context, profile))
    return tables


def error_table(context: Context) -> Table:
    """Returns measured and predicted numbers of the profile, run by run; T9."""
    words = context.words
    rows: list[tuple[Value | Cell, ...]] = []
    for row in context.document["step_times"]["errors"]:
        percent = row["error_percent"]
        share = None if percent is None else words.signed_share(percent / 100)
        seen = words("calibration.row_held_out" if row["held_out"] else "calibration.row_fitted")
        name = f"{row['metric']} {row['statistic'] or ''}".strip()
        rows.append((row["run"], row["band"] or "–", seen, name, row["measured"], row["predicted"], share))
    columns = (
        Column("run", words("column.run"), "text"), Column("band", words("column.band"), "text"),
        Column("use", words("column.use"), "text"), Column("metric", words("column.metric"), "flag"),
        Column("measured", words("column.measured")), Column("predicted", words("column.predicted")),
        Column("error", words("column.error"), "text"),
    )  # fmt: skip
    return Table("calibration", words("table.calibration"), columns, tuple(rows), code="T9")


def coefficient_table(context: Context, profile: Profile) -> Table:
    """Returns the coefficients of the step-time model with their uncertainty; T9."""
    words = context.words
    rows: list[tuple[Value | Cell, ...]] = []
    for name in type(profile.step_time).model_fields:
        value = getattr(profile.step_time, name)
        if isinstance(value, Estimate) and value.value:
            rows.append((name, value.value, value.stderr, value.remark or ""))
        elif isinstance(value, int | float) and not isinstance(value, bool) and value:
            rows.append((name, value, None, ""))
    columns = (
        Column("coefficient", words("column.coefficient"), "flag"), Column("value", words("column.value")),
        Column("stderr", words("column.stderr")), Column("remark", words("column.note"), "text"),
    )  # fmt: skip
    note = words("table.coefficients.note", source=profile.source.strip())
    return Table("coefficients", words("table.coefficients.title"), columns, tuple(rows), note, "T9")


def _profile(context: Context) -> Profile | None:
    """Returns the profile of a known scenario, when it can still be found."""
    scenario = context.source.scenario
    if scenario is None or context.document["step_times"]["source"] == "analytical":
        return None
    try:
        return plan(scenario).profile
    except UserError:  # a profile of one's own may have moved since; its errors are in the result
        return None
