"""The timeline of a request: its phases, and the stretches in which it was preempted, without gaps."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reports.content import Span, Timeline
from reports.model import build_report
from reports.sections.one_run import preempted_spans, request_spans
from reports.source import Source
from reports.words import Words
from sim.capacity import find_capacity
from sim.records import RunRecord
from sim.scenario.load import scenario_from_text
from sim.simulate import simulate
from tests.reports.worlds import WORLDS, run
from tests.sim.results.toys import S, finished

SHORT_OF_BLOCKS = ("workload.request_rate=16", "server.flags.num_gpu_blocks_override=1100")
CLIENT, QUEUE, PREFILL, DECODE, PREEMPTED = range(5)


def test_preempted_while_writing_and_again() -> None:
    request = finished(7, 0, 4 * S, decode_ns=6 * S, tokens=10, arrival_ns=S, scheduled_ns=2 * S)
    assert request_spans(request, 10 * S, [(5 * S, 6 * S), (7 * S, 9 * S)]) == (
        Span(0, 1, CLIENT), Span(1, 2, QUEUE), Span(2, 4, PREFILL), Span(4, 5, DECODE), Span(5, 6, PREEMPTED),
        Span(6, 7, DECODE), Span(7, 9, PREEMPTED), Span(9, 10, DECODE),
    )  # fmt: skip


def test_a_preemption_before_the_first_token_ends_in_the_next_phase_or_never() -> None:
    request = finished(7, 0, 4 * S, decode_ns=2 * S, tokens=10)
    assert request_spans(request, 6 * S, [(S, 3 * S)]) == (
        Span(0, 1, PREFILL), Span(1, 3, PREEMPTED), Span(3, 4, PREFILL), Span(4, 6, DECODE),
    )  # fmt: skip
    given_up = finished(7, 0, -1, first_token_ns=-1, finish_ns=6 * S)
    assert request_spans(given_up, 6 * S, [(S, 9 * S)]) == (Span(0, 1, PREFILL), Span(1, 6, PREEMPTED))


@given(
    times=st.lists(st.integers(0, 10**6), min_size=5, max_size=5).map(sorted),
    lost=st.lists(st.integers(0, 10**6), max_size=6).map(sorted),
)
def test_phases_follow_each_other_from_the_sending_to_the_end(times: list[int], lost: list[int]) -> None:
    sent, arrival, scheduled, first, end = (time * S for time in times)
    request = finished(0, sent, first - sent, decode_ns=end - first, arrival_ns=arrival, scheduled_ns=scheduled)
    pairs = [(start * S, stop * S) for start, stop in zip(lost[::2], lost[1::2], strict=False)]
    spans = request_spans(request, end, pairs)
    assert all(before.end == after.start for before, after in pairwise(spans))
    if spans:
        assert (spans[0].start, spans[-1].end) == (0, (end - sent) / S)


def test_the_log_of_a_run_says_when_its_requests_were_preempted() -> None:
    record = run("public", SHORT_OF_BLOCKS).run
    lost = preempted_spans(record)
    by_number = {request.request_id: request for request in record.requests}
    assert {number for number, each in by_number.items() if each.num_preemptions} == set(lost)
    for number, pairs in lost.items():
        assert len(pairs) == by_number[number].num_preemptions
        assert all(before[1] <= after[0] for before, after in pairwise(pairs))


def test_the_chart_shows_it_and_its_table_has_the_seconds() -> None:
    scenario = scenario_from_text(WORLDS["public"], overrides=(*SHORT_OF_BLOCKS, "objectives=['itl.p99 <= 10ms']"))
    runs: dict[tuple[float | None, int], RunRecord] = {}
    result = find_capacity(scenario, simulate, store=lambda run, load, seed: runs.__setitem__((load, seed), run))
    report = build_report([Source.of_result(scenario, result, runs)], Words.of("en"))
    worst = next(figure for figure in report.figures() if isinstance(figure, Timeline))
    drawn = [sum(span.end - span.start for span in spans if span.phase == PREEMPTED) for spans in worst.spans]
    keys = [column.key for column in worst.data.columns]
    assert worst.phases[PREEMPTED] == "preempted"
    assert sum(drawn) > 0
    assert [row[keys.index("preempted")] for row in worst.data.rows] == [round(each, 4) for each in drawn]
    counts = [row[keys.index("preemptions")] for row in worst.data.rows]
    assert [count > 0 for count in counts] == [seconds > 0 for seconds in drawn]  # type: ignore[operator]


def test_where_blocks_suffice_the_log_is_empty() -> None:
    assert preempted_spans(run("public").run) == {}
