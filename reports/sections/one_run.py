"""One run closely: latencies (F3), the server over time (F4), steps (F5), context (F9), the worst requests (F10)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from reports.content import Axis, Block, Chart, Column, Mark, Paragraph, Section, Series, Span, Table, Timeline
from reports.context import Context
from reports.sections.headline import binding_latency
from reports.source import Detail
from reports.timeseries import Bins, Steps
from sim.records import Outcome, RequestRecord, RunRecord
from sim.results.columns import RequestColumns
from sim.results.latency import itl_sample, request_latency
from sim.results.percentiles import Sample

_SHARES = (*range(0, 90, 2), *range(90, 100), 99.5, 99.9, 100)
_ZOOM_STEPS = 90
_WORST = 12
_MOST_TURNS = 40
_PHASES = ("client", "queue", "prefill", "decode", "preempted")
_PREFILL, _PREEMPTED = 2, 4  # indices of phases


def one_run_section(context: Context) -> Section | None:
    """Builds the section on the run at the load that is the answer; None when its records were not kept."""
    detail, words = context.shown, context.words
    if detail is None:
        return None
    steps = Steps.of(detail.run)
    blocks: list[Block] = [
        Paragraph(words("one_run.which", run=context.caption(detail), window=_window(context, detail))),
        *_distributions(context, detail),
        *_over_time(context, detail, steps),
        *_steps(context, detail, steps),
        *_context_per_turn(context, detail),
    ]
    timeline = worst_requests(context, detail)
    if timeline is not None:
        blocks.append(timeline)
    return Section("one_run", words("section.one_run"), tuple(blocks))


def _window(context: Context, detail: Detail) -> str:
    window, words = detail.metrics.window, context.words
    key = "window.whole" if window.finite and not window.start_ns else "window.steady"
    return words(key, start=words.duration(window.start_ns / 1e9), end=words.duration(window.end_ns / 1e9))


def _distributions(context: Context, detail: Detail) -> list[Chart]:
    """Draws the cumulative distribution of TTFT and of the gaps between tokens; F3."""
    window = detail.metrics.window
    columns = RequestColumns.of(detail.run)
    values, exists, _ = request_latency(columns, "ttft")
    chosen = exists & (columns.sent_ns >= window.start_ns) & (columns.sent_ns <= window.end_ns)
    samples = {"ttft": Sample(values[chosen]), "itl": itl_sample(detail.run, window, None)}
    return [_distribution(context, detail, kind, sample) for kind, sample in samples.items() if len(sample)]


def _distribution(context: Context, detail: Detail, kind: str, sample: Sample) -> Chart:
    words, unit_ns = context.words, 1e9 if kind == "ttft" else 1e6
    mean, p99 = sample.mean(), sample.percentile(99)
    assert mean is not None, f"a sample of {len(sample)} has no mean"
    assert p99 is not None, f"a sample of {len(sample)} has no percentile"
    places = tuple(float(f"{(sample.percentile(q) or 0.0) / unit_ns:.4g}") for q in _SHARES)
    shares = tuple(q / 100 for q in _SHARES)
    title = words(f"latency.{kind}")
    columns = (Column("share", words("column.share"), "share"), Column("value", title, "number", _unit(kind)))
    marks = [
        Mark("x", mean / unit_ns, words("chart.mean", value=words.duration(mean / 1e9))),
        Mark("x", p99 / unit_ns, words("chart.p99", value=words.duration(p99 / 1e9)), "warn"),
    ]
    wide = places[0] > 0 and places[-1] > 20 * places[0]
    return Chart(
        key=f"{kind}_distribution",
        title=words("chart.distribution.title", latency=title),
        caption=words("caption.counted", run=context.caption(detail), count=words.count(len(sample))),
        alt=words("chart.distribution.alt", latency=title, p50=words.duration((sample.percentile(50) or 0) / 1e9),
                  p99=words.duration(p99 / 1e9)),
        x=Axis(title, _unit(kind), "log" if wide else "linear"),
        y=Axis(words("column.share"), kind="share", at_least=1.0),
        series=(Series(kind, title, places, shares, 0),),
        marks=tuple(marks),
        code="F3",
        data=Table(f"{kind}_distribution_data", title, columns, tuple(zip(shares, places, strict=True))),
    )  # fmt: skip


def _unit(kind: str) -> str:
    return "s" if kind == "ttft" else "ms"


def _over_time(context: Context, detail: Detail, steps: Steps) -> list[Chart]:
    """Draws running and waiting, the KV cache, preemptions and the hit rate over time; F4."""
    words = context.words
    bins = Bins.of(steps, detail.run.end_ns)
    times, caption = bins.middles_s, context.caption(detail)
    x = Axis(words("axis.time"), "s")
    seats = detail.run.max_num_seqs * detail.run.num_replicas
    most_running = max(bins.largest(steps.running), default=0.0)
    marks = (Mark("y", seats, f"max_num_seqs {words.count(seats)}", "bad"),) if most_running > 0.5 * seats else ()
    requests = Chart(
        "requests_over_time", words("chart.requests.title"), caption,
        words("chart.requests.alt", running=most_running, waiting=max(bins.largest(steps.waiting), default=0.0)),
        x, Axis(words("axis.requests")),
        (
            Series("running", words("column.running"), times, bins.mean(steps.running), 0, "step"),
            Series("waiting", words("column.waiting"), times, bins.mean(steps.waiting), 1, "step", dash=1),
            Series("waiting_max", words("series.waiting_max"), times, bins.largest(steps.waiting), 3, "step", dash=2),
        ),
        marks, code="F4",
    )  # fmt: skip
    kv = Chart(
        "kv_over_time", words("chart.kv.title"), caption,
        words("chart.kv.alt", share=words.share(max(bins.largest_share(steps.kv_share), default=0.0))),
        x, Axis(words("column.kv"), kind="share", at_least=1.0),
        (
            Series("kv_mean", words("series.mean"), times, bins.mean_share(steps.kv_share), 0, "step"),
            Series("kv_max", words("series.max"), times, bins.largest_share(steps.kv_share), 1, "step", dash=1),
        ),
        code="F4",
    )  # fmt: skip
    return [requests, kv, _preemptions(context, detail, bins), _hit_rate(context, detail, bins)]


def _preemptions(context: Context, detail: Detail, bins: Bins) -> Chart:
    words = context.words
    counts = bins.total(bins.steps.preempted)
    return Chart(
        "preemptions_over_time", words("chart.preemptions.title"), context.caption(detail),
        words("chart.preemptions.alt", count=sum(counts)),
        Axis(words("axis.time"), "s"), Axis(words("column.preemptions"), at_least=1.0),
        (Series("preemptions", words("column.preemptions"), bins.middles_s, counts, 1, "bars"),),
        code="F4",
    )  # fmt: skip


def _hit_rate(context: Context, detail: Detail, bins: Bins) -> Chart:
    words = context.words
    rates = bins.ratio(bins.steps.hits, bins.steps.queries)
    whole = detail.metrics.server.prefix_hit_rate
    return Chart(
        "hit_rate_over_time", words("chart.hit_rate.title"), context.caption(detail),
        words("chart.hit_rate.alt", share=words.share(whole)),
        Axis(words("axis.time"), "s"), Axis(words("column.hit_rate"), kind="share", at_least=1.0),
        (Series("hit_rate", words("column.hit_rate"), bins.middles_s, rates, 2, "line"),),
        code="F4",
    )  # fmt: skip


def _steps(context: Context, detail: Detail, steps: Steps) -> list[Chart]:
    """Draws the tokens of a step, prompts on top of decodes, against the budget: the whole run, and closely; F5."""
    if not len(steps.end_ns):
        return []
    words, budget = context.words, detail.run.max_num_batched_tokens
    bins = Bins.of(steps, detail.run.end_ns)
    decodes, prefill = bins.per_step(steps.decodes), bins.per_step(steps.prefill)
    marks = (Mark("y", budget, f"max_num_batched_tokens {words.count(budget)}", "bad"),)
    whole = Chart(
        "tokens_over_time", words("chart.tokens.title"), context.caption(detail),
        words("chart.tokens.alt", budget=words.count(budget)),
        Axis(words("axis.time"), "s"), Axis(words("axis.tokens_per_step"), at_least=1.12 * budget),
        (
            Series("decodes", words("series.decodes"), bins.middles_s, decodes, 0),
            Series("prefill", words("series.prefill"), bins.middles_s, prefill, 1),
        ),
        marks, stacked=True, code="F5",
    )  # fmt: skip
    return [whole, _zoom(context, detail, steps, marks)]


def _zoom(context: Context, detail: Detail, steps: Steps, marks: tuple[Mark, ...]) -> Chart:
    """Draws single steps around the one that kept the most answers waiting the longest."""
    words = context.words
    worst = int(np.argmax(steps.duration_ns * steps.decodes))
    first = max(0, min(worst - _ZOOM_STEPS // 2, len(steps.end_ns) - _ZOOM_STEPS))
    chosen = slice(first, first + _ZOOM_STEPS)
    start_ns = int(steps.begin_ns[first])
    times = tuple(
        round((int(each) - start_ns) / 1e9, 4) for each in [*steps.begin_ns[chosen], steps.end_ns[chosen][-1]]
    )
    layers = {name: [float(each) for each in values[chosen]] for name, values in
              (("decodes", steps.decodes), ("prefill", steps.prefill))}  # fmt: skip
    slowest, decodes = words.duration(int(steps.duration_ns[worst]) / 1e9), words.count(int(steps.decodes[worst]))
    return Chart(
        "tokens_closely", words("chart.zoom.title"),
        words("caption.zoom", run=context.caption(detail), at=words.duration(start_ns / 1e9)),
        words("chart.zoom.alt", slowest=slowest, decodes=decodes),
        Axis(words("axis.since", at=words.duration(start_ns / 1e9)), "s"),
        Axis(words("axis.tokens_per_step"), at_least=1.12 * detail.run.max_num_batched_tokens),
        tuple(
            Series(name, words(f"series.{name}"), times, (*values, values[-1]), colour, "step")
            for colour, (name, values) in enumerate(layers.items())
        ),
        marks, stacked=True, code="F5",
    )  # fmt: skip


def _context_per_turn(context: Context, detail: Detail) -> list[Chart]:
    """Draws how the prompt grows from turn to turn; F9."""
    words = context.words
    by_turn: dict[int, list[int]] = {}
    for request in detail.run.requests:
        by_turn.setdefault(request.turn, []).append(request.num_prompt_tokens)
    turns = [turn for turn in sorted(by_turn) if turn < _MOST_TURNS]
    if len(turns) < 2:
        return []
    samples = [Sample(by_turn[turn]) for turn in turns]
    means = tuple(round(sample.mean() or 0.0, 1) for sample in samples)
    tails = tuple(round(sample.percentile(95) or 0.0, 1) for sample in samples)
    places = tuple(float(turn + 1) for turn in turns)
    per_token = context.document["memory"]["kv_bytes_per_token"]
    rows = tuple(
        (turn + 1, len(by_turn[turn]), mean, tail, round(mean * per_token / 2**30, 4))
        for turn, mean, tail in zip(turns, means, tails, strict=True)
    )
    columns = (
        Column("turn", words("axis.turn"), "count"), Column("requests", words("column.num_requests"), "count"),
        Column("mean", words("word.mean"), "number", "tok"), Column("p95", "p95", "number", "tok"),
        Column("kv_gib", words("column.kv_mean_gib"), "number", "GiB"),
    )  # fmt: skip
    title = words("chart.context.title")
    return [
        Chart(
            "context_per_turn", title, context.caption(detail),
            words("chart.context.alt", first=words.count(means[0]), last=words.count(means[-1]), turns=len(turns)),
            Axis(words("axis.turn")), Axis(words("axis.prompt_tokens"), "tok"),
            (
                Series("mean", words("word.mean"), places, means, 0),
                Series("p95", words("word.percentile", q="95"), places, tails, 1, dash=1),
            ),
            code="F9", data=Table("context_per_turn_data", title, columns, rows),
        )
    ]  # fmt: skip


def worst_requests(context: Context, detail: Detail) -> Timeline | None:
    """Draws where the time of the slowest requests went; F10."""
    words = context.words
    kind = binding_latency(context)
    chosen = _slowest(detail, kind)
    if not chosen:
        return None
    lost = preempted_spans(detail.run)
    labels, drawn = list[str](), list[tuple[Span, ...]]()
    rows: list[tuple[str | float, ...]] = []
    for request in chosen:
        end = request.finish_ns if request.finish_ns >= 0 else detail.run.end_ns
        spans = request_spans(request, end, lost.get(request.request_id, []))
        labels.append(f"#{request.request_id}{' ⟲' + str(request.num_preemptions) if request.num_preemptions else ''}")
        drawn.append(spans)
        lengths = [round(sum(span.end - span.start for span in spans if span.phase == phase), 4)
                   for phase in range(len(_PHASES))]  # fmt: skip
        sizes = (request.num_prompt_tokens, request.num_cached_tokens, request.num_output_tokens)
        name = detail.run.class_names[request.class_id]
        rows.append((f"#{request.request_id}", name, *sizes, *lengths, request.num_preemptions,
                     words(f"outcome.{request.outcome.name.lower()}")))  # fmt: skip
    phases = tuple(words(f"phase.{name}") for name in _PHASES)
    title = words("chart.worst.title", latency=words(f"short.{kind}"))
    return Timeline(
        "worst_requests", title, words("caption.worst", run=context.caption(detail)), _worst_alt(context, rows),
        Axis(words("axis.since_sent"), "s"), phases, tuple(labels), tuple(drawn),
        Table("worst_requests_data", title, _worst_columns(context, phases), tuple(rows)), "F10",
    )  # fmt: skip


def _worst_alt(context: Context, rows: list[tuple[str | float, ...]]) -> str:
    words = context.words
    queue, prefill, decode = (words.duration(float(rows[0][index])) for index in (6, 7, 8))
    return words("chart.worst.alt", queue=queue, prefill=prefill, decode=decode)


def _worst_columns(context: Context, phases: tuple[str, ...]) -> tuple[Column, ...]:
    words = context.words
    counts = [Column(key, words(f"column.{key}"), "count") for key in ("prompt", "cached", "output")]
    times = [Column(key, title, "number", "s") for key, title in
             zip(_PHASES, phases, strict=True)]  # fmt: skip
    return (
        Column("request", words("column.request"), "text"), Column("class", words("column.class"), "text"),
        *counts, *times,
        Column("preemptions", words("column.preemptions"), "count"), Column("outcome", words("column.outcome"), "text"),
    )  # fmt: skip


def _slowest(detail: Detail, kind: str) -> list[RequestRecord]:
    """Returns the requests of the window with the largest latency of a kind that were served at all."""
    window, requests = detail.metrics.window, detail.run.requests
    columns = RequestColumns.of(detail.run)
    if kind == "itl":
        kind = "tpot"  # a request has no single gap
    values, exists, _ = request_latency(columns, kind)
    served = ~columns.ended(Outcome.REFUSED, Outcome.REJECTED, Outcome.NEVER_FITS)
    inside = (columns.sent_ns >= window.start_ns) & (columns.sent_ns <= window.end_ns)
    chosen = np.flatnonzero(exists & served & inside)
    order = chosen[np.argsort(-values[chosen], kind="stable")]
    return [requests[int(index)] for index in order[:_WORST]]


def preempted_spans(run: RunRecord) -> dict[int, list[tuple[int, int]]]:
    """Returns when each request that was preempted was out of the running batch, in nanoseconds, by its number."""
    found: dict[int, list[tuple[int, int]]] = {}
    log = run.preemptions
    for number, start, end in zip(log.request_id, log.start_ns, log.end_ns, strict=True):
        found.setdefault(number, []).append((start, end if end >= 0 else run.end_ns))
    return found


def request_spans(request: RequestRecord, end_ns: int, lost: list[tuple[int, int]]) -> tuple[Span, ...]:
    """Returns the phases of a request as stretches without gaps, in seconds since it was sent.

    Args:
        request: the request.
        end_ns: when it ended, or what is known of it ends.
        lost: when it was preempted, in order.
    """
    times = [request.sent_ns, request.arrival_ns, request.scheduled_ns, request.first_token_ns, end_ns]
    for index in (3, 2, 1):  # what is not known happened no later than what came after it
        if times[index] < 0:
            times[index] = times[index + 1]
    pieces: list[tuple[int, int, int]] = []
    for phase, (start, end) in enumerate(pairwise(times)):
        at = start
        for begin, resume in lost if phase >= _PREFILL else ():
            gone, back = max(at, begin), min(resume, end)
            if gone < back:
                pieces += [(at, gone, phase), (gone, back, _PREEMPTED)]
                at = back
        pieces.append((at, end, phase))
    return tuple(
        Span(round((start - request.sent_ns) / 1e9, 4), round((end - request.sent_ns) / 1e9, 4), phase)
        for start, end, phase in pieces
        if end > start
    )
