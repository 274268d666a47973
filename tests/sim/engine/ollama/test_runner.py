"""Slots, batches, the cache of each slot, and contexts that run full."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.ollama.runner import Runner
from sim.engine.recorded import LinearCost
from sim.records import Outcome, RunRecord
from tests.cases.build import MS, S
from tests.sim.engine.ollama.build import answers, ask, count, model, placed, records, serve

PER_TOKEN = LinearCost(0, per_token=1000)  # 1 ms a token
BATCHINGS = ("decode_first", "round_robin")


# ---- slots ----


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("num_parallel", [1, 2, 4])
def test_no_more_than_num_parallel_run_and_the_others_wait_in_order(num_parallel: int, batching: Any) -> None:
    run = serve([ask(i) for i in range(12)], [model(placement=placed(num_parallel), batching=batching)])
    assert max(run.steps.num_running) == num_parallel
    # The batches cost the same whatever is in them: each round of slots takes 100 ms.
    assert [answers(run)[i].slot_wait for i in range(12)] == [i // num_parallel * 100 * MS for i in range(12)]


@given(number=st.integers(1, 12), num_parallel=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_the_parts_of_total_duration_add_up(number: int, num_parallel: int) -> None:
    run = serve([ask(i, at_ms=13 * i, prompt=50 + i, output=1 + i) for i in range(number)], [
        model(placement=placed(num_parallel), cost=LinearCost(3000, per_token=100))
    ])  # fmt: skip
    assert len(answers(run)) == number
    for number_of, answer in answers(run).items():
        record = records(run)[number_of]
        # With a slot a request still waits for the batch under way: no field of Ollama's shows that apart.
        waited = record.scheduled_ns - record.arrival_ns - answer.load_duration
        assert waited <= answer.slot_wait <= waited + 10 * MS
        assert answer.total_duration == record.finish_ns - record.arrival_ns
        assert answer.load_duration + answer.slot_wait + answer.prompt_eval_duration == (
            record.first_token_ns - record.arrival_ns
        )
        assert (answer.prompt_eval_count, answer.eval_count) == (50 + number_of, 1 + number_of)


def test_tokens_per_second_are_computed_as_users_do() -> None:
    """eval_count / eval_duration x 1e9: the first token belongs to the prompt's time, so it comes out a little high."""
    answer = answers(serve([ask(0, output=101)]))[0]
    assert answer.eval_count / answer.eval_duration * 1e9 == pytest.approx(101 / 100 * 100)
    assert answer.prompt_eval_count / answer.prompt_eval_duration * 1e9 == pytest.approx(100 / 0.01)


# ---- batches ----


def gaps_ms(run: RunRecord, least_ms: int) -> list[int]:
    return sorted(gap // MS for gap in run.itl.gap_ns if gap >= least_ms * MS)


def test_llama_server_lets_answers_go_on_beside_a_long_prompt() -> None:
    """Decode-first: each batch of 512 has the answer's token and 511 of the prompt."""
    writer, reader = ask(0, prompt=10, output=30), ask(1, at_ms=15, prompt=2000, output=1)
    run = serve([writer, reader], [model(placement=placed(2), cost=PER_TOKEN)])
    mixed = [(p, d) for p, d in zip(run.steps.num_prefill_tokens, run.steps.num_decodes, strict=True) if p and d]
    assert mixed == [(511, 1), (511, 1), (511, 1), (467, 1)]
    assert gaps_ms(run, 100) == [468, 512, 512, 512]


def test_the_go_runner_gives_a_long_prompt_the_whole_batch_when_it_is_its_turn() -> None:
    """Round robin: the prompt in slot 1 leaves no room for the answer in slot 2, which then goes first."""
    other = ask(0, prompt=10, output=1)  # has slot 1 first, so that the long prompt gets it
    writer, reader = ask(1, prompt=10, output=30), ask(2, at_ms=30, prompt=2000, output=1)
    run = serve([other, writer, reader], [model(placement=placed(2), cost=PER_TOKEN, batching="round_robin")])
    rows = list(zip(run.steps.num_prefill_tokens, run.steps.num_decodes, strict=True))
    assert rows.count((512, 0)) == 1
    assert rows[rows.index((512, 0)) + 1] == (511, 1)
    assert gaps_ms(run, 1000) == [1024]  # 512 without it, then 512 with it


def test_a_prompt_alone_fills_batch_after_batch() -> None:
    for batching in BATCHINGS:
        run = serve([ask(0, prompt=1100, output=1)], [model(cost=PER_TOKEN, batching=batching)])
        assert list(run.steps.num_prefill_tokens) == [512, 512, 76]


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 300), st.integers(1, 40), st.none() | st.integers(20, 400)),
        min_size=1, max_size=14,
    ),
    num_parallel=st.integers(1, 4),
    num_ctx=st.sampled_from([16, 64, 4096]),
    batching=st.sampled_from(BATCHINGS),
    shift=st.booleans(),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_a_run_of_batches_equals_single_ones(
    jobs: list[tuple[int, int, int, int | None]], num_parallel: int, num_ctx: int, batching: Any, shift: bool
) -> None:
    """The engine computes several batches at once where nothing can change between them: the same to the tick."""
    requests = [
        ask(i, at_ms=at, prompt=prompt, output=output, timeout_ms=timeout)
        for i, (at, prompt, output, timeout) in enumerate(jobs)
    ]
    one = model(
        placement=placed(num_parallel, num_ctx, 32), cost=LinearCost(900, 70, 30, 500), batching=batching, shift=shift
    )
    fast = serve(requests, [one], warm=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_go_on", lambda *_: None)
        slow = serve(requests, [one], warm=False)
    assert asdict(fast) == asdict(slow)
    assert len(fast.requests) == len(jobs)
    assert all(record.outcome is not Outcome.UNFINISHED for record in fast.requests)


# ---- the cache of a slot ----

HELLO, SECOND = (1, 200), (2, 50)


def test_the_next_turn_of_a_conversation_finds_its_slot() -> None:
    """Prompt and answer are there, but for the last token, which nothing has computed."""
    turn = ask(1, at_ms=1000, prompt=(HELLO, (20_001, 10), SECOND), output=5)
    run = serve([ask(0, prompt=(HELLO,), output=10, turn=0), turn], [model(placement=placed(2))])
    assert answers(run)[1].prompt_eval_cached_count == 200  # the answer of request 0 is another stream here
    first = ask(0, prompt=(HELLO,), output=10)
    second = ask(1, at_ms=1000, prompt=(HELLO, (first.output_stream, 10), SECOND), output=5)
    run = serve([first, second], [model(placement=placed(2))])
    assert answers(run)[1].prompt_eval_cached_count == 209
    assert answers(run)[1].prompt_eval_count == 260


def test_a_prompt_that_is_there_whole_computes_its_last_token_again() -> None:
    run = serve([ask(0, prompt=(HELLO,)), ask(1, at_ms=1000, prompt=(HELLO,))])
    assert answers(run)[1].prompt_eval_cached_count == 199


def test_slots_do_not_share() -> None:
    """Two at once with the same prefix: each computes it for itself."""
    run = serve([ask(0, prompt=(HELLO,)), ask(1, prompt=(HELLO,))], [model(placement=placed(2))])
    assert [answers(run)[i].prompt_eval_cached_count for i in (0, 1)] == [0, 0]


def test_llama_server_takes_the_least_recently_used_slot_when_no_prefix_is_similar() -> None:
    """Three conversations in two slots throw each other out; two keep their slots."""

    def hits(conversations: int) -> list[int | None]:
        requests = [ask(i, at_ms=1000 * i, prompt=((100 + i % conversations, 200),)) for i in range(8)]
        run = serve(requests, [model(placement=placed(2))])
        return [answers(run)[i].prompt_eval_cached_count for i in range(8)]

    assert hits(2) == [0, 0] + [199] * 6
    assert hits(3) == [0] * 8


def test_a_short_common_prefix_does_not_choose_the_slot() -> None:
    """Similarity below a tenth: the slot that was not used for longer is taken, and the other keeps its content."""
    system = (7, 30)
    first, other = (system, (1, 400)), ((8, 400),)
    requests = [ask(0, prompt=first), ask(1, at_ms=1000, prompt=other), ask(2, at_ms=2000, prompt=first)]
    third = ask(3, at_ms=3000, prompt=(system, (9, 400)))  # 30 of 430 in common with slot 0
    run = serve([*requests, third, ask(4, at_ms=4000, prompt=first)], [model(placement=placed(2))])
    assert answers(run)[3].prompt_eval_cached_count == 0
    assert answers(run)[4].prompt_eval_cached_count == 429


def test_the_go_runner_takes_the_longest_prefix_and_multiuser_cache_copies_it() -> None:
    long, longer = ((1, 200),), ((1, 200), (2, 50))
    requests = [
        ask(0, prompt=long, output=40), ask(1, at_ms=100, prompt=longer, output=1), ask(2, at_ms=1000, prompt=longer)
    ]  # fmt: skip
    plain = serve(requests, [model(placement=placed(2), batching="round_robin")])
    copied = serve(requests, [model(placement=placed(2), batching="round_robin", multiuser_cache=True)])
    assert answers(plain)[1].prompt_eval_cached_count == 0  # the only slot with the prefix is taken
    assert answers(copied)[1].prompt_eval_cached_count == 200
    assert answers(plain)[2].prompt_eval_cached_count == 249


def test_what_a_cancelled_request_had_computed_is_found_again() -> None:
    prompt = ((1, 1000),)
    run = serve([ask(0, prompt=prompt, timeout_ms=600), ask(1, at_ms=700, prompt=prompt)], [model(cost=PER_TOKEN)])
    assert records(run)[0].outcome is Outcome.TIMED_OUT
    assert answers(run)[1].prompt_eval_cached_count == 512  # the first batch was over


# ---- full contexts ----


def test_a_prompt_longer_than_the_context_loses_its_middle() -> None:
    """num_ctx 4096, num_keep 4: 4096 - 2046 = 2050 tokens are left, the first four and the last (llama_server.go)."""
    run = serve([ask(0, prompt=4095), ask(1, at_ms=1000, prompt=4096)])
    assert [answers(run)[i].prompt_eval_count for i in (0, 1)] == [4095, 2050]
    assert run.ollama is not None
    assert run.ollama.num_truncated == 1


def test_the_go_runner_cuts_to_the_context() -> None:
    run = serve([ask(0, prompt=5000, output=1)], [model(batching="round_robin")])
    assert answers(run)[0].prompt_eval_count == 4096


def test_without_shift_too_long_a_prompt_is_answered_400_and_a_full_context_ends_the_answer() -> None:
    requests = [ask(0, prompt=4096), ask(1, prompt=4000, output=500)]
    run = serve(requests, [model(shift=False)])
    assert records(run)[0].outcome is Outcome.REFUSED
    assert answers(run)[1].eval_count == 97  # 96 of them are in the context


def test_a_full_context_drops_its_older_half_and_goes_on() -> None:
    run = serve([ask(0, prompt=100, output=500)], [model(placement=placed(num_ctx=256))])
    assert answers(run)[0].eval_count == 500
    assert run.ollama is not None
    # 256 are full after 157 tokens; each shift drops (256 - 4) / 2 = 126.
    assert run.ollama.num_shifts == 3


def test_a_shift_destroys_the_prefix() -> None:
    first = ask(0, prompt=(HELLO,), output=100)
    second = ask(1, at_ms=5000, prompt=(HELLO, (first.output_stream, 20)), output=1)
    roomy, tight = (serve([first, second], [model(placement=placed(num_ctx=n))]) for n in (1024, 256))
    assert answers(roomy)[1].prompt_eval_cached_count == 219
    assert answers(tight)[1].prompt_eval_cached_count == 4  # num_keep


def test_an_answer_without_end_is_bounded() -> None:
    run = serve([ask(0, prompt=10, output=100_000)], [model(placement=placed(num_ctx=64))])
    assert answers(run)[0].eval_count == 640


def test_cancelled_requests_make_room() -> None:
    requests = [ask(0, output=1000, timeout_ms=500), ask(1, output=10), ask(2, output=10, timeout_ms=100)]
    run = serve(requests)
    assert records(run)[1].scheduled_ns == pytest.approx(0.5 * S, abs=10 * MS)
    assert records(run)[2].outcome is Outcome.TIMED_OUT
    assert count(run, Outcome.FINISHED) == 1
