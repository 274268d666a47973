"""Laws of a whole server, whatever models, versions and clients: every request ends once, nothing is served twice."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.ollama.placement import Host
from sim.engine.recorded import LinearCost
from sim.records import Outcome
from tests.cases.build import MS
from tests.sim.engine.ollama.build import GIB, answers, ask, model, placed, serve

JOBS = st.lists(
    st.tuples(
        st.integers(0, 3000),  # sent after, ms
        st.integers(0, 2),  # model
        st.integers(1, 200),  # prompt
        st.integers(1, 40),  # answer
        st.none() | st.integers(1, 3000),  # patience, ms
    ),
    min_size=1,
    max_size=20,
)


@given(
    jobs=JOBS,
    rule=st.sampled_from(["faq", "source"]),
    batching=st.sampled_from(["decode_first", "round_robin"]),
    slots=st.integers(1, 3),
    max_queue=st.integers(0, 4),
    max_loaded=st.integers(1, 3),
    keep_alive_ms=st.sampled_from([0, 500, 300_000, None]),
    num_gpus=st.integers(1, 2),
    one_file=st.booleans(),
    warm=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_every_request_ends_once(
    *,
    jobs: list[tuple[int, int, int, int, int | None]],
    rule: str,
    batching: Any,
    slots: int,
    max_queue: int,
    max_loaded: int,
    keep_alive_ms: int | None,
    num_gpus: int,
    one_file: bool,
    warm: bool,
) -> None:
    models = [
        model(
            name,
            placed(slots, 256, 64, gib=gib),
            load_ms=700,
            keep_alive_ms=keep_alive_ms,
            cost=LinearCost(2000, 50, 100, 10),
            path="file" if one_file and number < 2 else name,
            batching=batching,
        )
        for number, (name, gib) in enumerate((("a", 9), ("b", 9), ("c", 5)))
    ]
    requests, at_ms = [], 0
    for number, (gap, model_id, prompt, output, timeout) in enumerate(jobs):
        at_ms += gap
        requests.append(ask(number, model_id, at_ms, prompt=prompt, output=output, timeout_ms=timeout))
    run = serve(
        requests, models, warm=warm, host=Host(16 * GIB, num_gpus, 0), queue_rule=rule, max_queue=max_queue,
        max_loaded_models=max_loaded,
    )  # fmt: skip
    again = serve(
        requests, models, warm=warm, host=Host(16 * GIB, num_gpus, 0), queue_rule=rule, max_queue=max_queue,
        max_loaded_models=max_loaded,
    )  # fmt: skip
    assert run == again, "the same requests, the same run"
    assert sorted(record.request_id for record in run.requests) == list(range(len(jobs)))
    log = run.ollama
    assert log is not None
    outcomes = Counter(record.outcome for record in run.requests)
    assert outcomes[Outcome.UNFINISHED] == 0, "conservation"
    assert outcomes[Outcome.REJECTED] == len(log.rejected_ns)
    found = answers(run)
    assert len(found) == len(log.responses) == outcomes[Outcome.FINISHED]
    for record in run.requests:
        _, _, prompt, output, timeout = jobs[record.request_id]
        if record.outcome is Outcome.FINISHED:
            assert record.num_output_tokens == output
            answer = found[record.request_id]
            assert answer.load_duration >= 0
            assert answer.slot_wait >= 0
            assert answer.prompt_eval_duration > 0
            assert (
                record.sent_ns <= record.arrival_ns <= record.scheduled_ns < record.first_token_ns <= record.finish_ns
            )
        if record.outcome is Outcome.TIMED_OUT:
            assert timeout is not None
            assert record.finish_ns == record.sent_ns + timeout * MS
    for replica in range(3):  # one runner's batches follow each other
        rows = [
            (start, end, running)
            for number, start, end, running in zip(
                run.steps.replica, run.steps.start_ns, run.steps.end_ns, run.steps.num_running, strict=True
            )
            if number == replica
        ]
        assert all(before[1] <= after[0] for before, after in pairwise(rows))
        assert all(1 <= running <= slots for _, _, running in rows)
    assert all(0 <= free <= slots * 256 for free in run.steps.num_free_blocks)
    assert all(end - start <= 700 * MS for _, start, end, _ in log.loads)
    whole = [load for load in log.loads if not load[3]]
    assert len(log.unloads) <= len(whole) + 3 * warm
