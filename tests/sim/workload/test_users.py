"""Users hold conversations: each turn carries all that was said before, and user i is user i in every crowd."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import UserError
from sim.records import Outcome
from sim.scenario.model import Scenario
from sim.workload.build import build_workload
from sim.workload.client import ClientRequest, Prompt
from sim.workload.users import spread_classes
from tests.sim.workload.made import CHAT, users
from tests.sim.workload.server import SECOND, Run, Served, serve

DOCUMENT = {**CHAT, "name": "document", "share": 0.1, "first_prompt_tokens": {"uniform": {"low": 9000, "high": 16000}}}
FIXED = {"first_prompt_tokens": 100, "next_prompt_tokens": 10, "output_tokens": 20, "turns": 4, "think_time": "5s"}


def by_user(run: Run) -> dict[int, list[Served]]:
    """Returns what each user sent, in order."""
    served = defaultdict(list)
    for item in sorted(run.served, key=lambda item: item.request.request_id):
        served[item.request.user_id].append(item)
    return dict(served)


def content(request: ClientRequest) -> tuple[int, ...]:
    """Returns what is in a request, without the numbers of its streams."""
    lengths = (length for _, length in request.prompt)
    return (request.class_id, request.turn, request.max_tokens, request.output_tokens, *lengths)


def extends(prompt: Prompt, former: ClientRequest) -> bool:
    """Returns whether a prompt is a former one, its whole answer, and one more text."""
    return prompt[:-1] == (*former.prompt, (former.output_stream, former.output_tokens))


scenarios = st.builds(
    lambda chat, rest: users(chat=chat, run={"duration": "10min"}, **rest),
    st.fixed_dictionaries(
        {
            "turns": st.sampled_from([1, 3, {"geometric": {"mean": 5, "max": 12}}]),
            "think_time": st.sampled_from(["0s", "10s", {"exponential": {"mean": "20s"}}]),
            "context_limit_tokens": st.sampled_from([None, 500, 4000]),
        }
    ),
    st.fixed_dictionaries(
        {
            "start": st.sampled_from(["under_way", "fresh"]),
            "ramp_up": st.sampled_from([None, "0s", "2min"]),
            "session": st.sampled_from([None, {"length": {"exponential": {"mean": "2min"}}, "pause": "1min"}]),
            "new_conversation_after": st.sampled_from([None, "30s"]),
        }
    ),
)


@settings(max_examples=30, deadline=None)
@given(scenario=scenarios, num_users=st.integers(0, 8), service=st.integers(1, 30), seed=st.integers(0, 99))
def test_a_prompt_is_the_former_one_the_answer_and_the_new_text(
    scenario: Scenario, num_users: int, service: int, seed: int
) -> None:
    """Within a conversation; a conversation begins with text that is nobody else's."""
    run = serve(build_workload(scenario, seed, num_users), service * SECOND)
    assert set(by_user(run)) <= set(range(num_users))
    for sent in by_user(run).values():
        for former, later in pairwise(sent):
            assert later.request.sent_ns >= former.done_ns
            if later.request.turn:
                assert later.request.turn == former.request.turn + 1
                assert extends(later.request.prompt, former.request)
            else:
                assert len(later.request.prompt) == 1
    for request in run.sent:
        assert request.num_prompt_tokens == sum(length for _, length in request.prompt)
        assert request.sent_ns < 600 * SECOND
        limit = scenario.workload.classes[0].context_limit_tokens  # type: ignore[union-attr]
        assert limit is None or not request.turn or request.num_prompt_tokens + request.output_tokens <= limit


@settings(max_examples=15, deadline=None)
@given(
    few=st.integers(1, 12), many=st.integers(13, 40), seed=st.integers(0, 99), slow=st.integers(1, 60),
    outcome=st.sampled_from([Outcome.FINISHED, Outcome.REFUSED, Outcome.REJECTED]),
)  # fmt: skip
def test_a_user_is_the_same_among_few_and_among_many(
    few: int, many: int, seed: int, slow: int, outcome: Outcome
) -> None:
    """Common random numbers: the n-th conversation of user i is the same, whatever the crowd, speed and errors."""
    scenario = users(classes=[{**CHAT, "share": 0.9}, DOCUMENT], run={"duration": "20min"})
    quick = by_user(serve(build_workload(scenario, seed, few)))
    busy = by_user(
        serve(
            build_workload(scenario, seed, many),
            slow * SECOND,
            fate=lambda r: outcome if r.user_id % 3 else Outcome.FINISHED,
        )
    )
    for user_id, sent in quick.items():
        for one, other in zip(conversations(sent), conversations(busy.get(user_id, [])), strict=False):
            assert one[0] == other[0]


def conversations(sent: list[Served]) -> list[list[tuple[int, ...]]]:
    """Returns the content of each conversation's requests."""
    parts: list[list[tuple[int, ...]]] = []
    for item in sent:
        if not parts or item.request.turn == 0:
            parts.append([])
        parts[-1].append(content(item.request))
    return parts


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    one, same, other = (serve(build_workload(users(), seed)).sent for seed in (1, 1, 2))
    assert one == same
    assert [content(request) for request in one[:20]] != [content(request) for request in other[:20]]


@given(shares=st.lists(st.floats(0.01, 10), min_size=1, max_size=5), num_users=st.integers(0, 200))
def test_any_first_users_are_divided_by_the_shares(shares: list[float], num_users: int) -> None:
    """No class is ever a whole user ahead of its share, or as many behind as there are other classes."""
    classes = spread_classes(shares, num_users)
    assert classes == spread_classes(shares, num_users + 10)[:num_users]
    for class_id, share in enumerate(shares):
        due = share / sum(shares) * num_users
        assert due - len(shares) < classes.count(class_id) < due + 1 + 1e-9


def test_nine_chat_users_and_one_with_documents_are_a_team_of_ten() -> None:
    assert spread_classes([0.9, 0.1], 30).count(1) == 3
    assert all(spread_classes([0.9, 0.1], 30)[start : start + 10].count(1) == 1 for start in (0, 10, 20))


def test_a_user_thinks_after_each_answer_and_pauses_between_conversations() -> None:
    scenario = users(users=1, chat=FIXED, start="fresh", new_conversation_after="1min", ramp_up="0s")
    sent = serve(build_workload(scenario, 0), 2 * SECOND).sent
    assert [(request.turn, request.sent_ns // SECOND) for request in sent[:6]] == [
        (0, 0), (1, 7), (2, 14), (3, 21), (0, 83), (1, 90),
    ]  # fmt: skip
    assert [request.num_prompt_tokens for request in sent[:6]] == [100, 130, 160, 190, 100, 130]


def test_a_conversation_ends_before_prompt_and_answer_exceed_the_limit() -> None:
    """100 + 20, then 30 more a turn: with 180 the third turn is the last; max_model_len counts where it is lower."""
    chat = {**FIXED, "turns": 1000}
    for limit, max_model_len in ((180, None), (209, None), (None, 180), (500, 180)):
        scenario = users(users=1, chat={**chat, "context_limit_tokens": limit}, start="fresh")
        sent = serve(build_workload(scenario, 0, max_model_len=max_model_len)).sent
        assert {request.turn for request in sent} == {0, 1, 2}


def test_a_first_turn_is_sent_even_when_it_exceeds_the_limit() -> None:
    sent = serve(build_workload(users(chat=FIXED), 0, max_model_len=50)).sent
    assert {request.turn for request in sent} == {0}


def test_contexts_grow_from_the_stated_start_to_the_stated_end() -> None:
    """A coding agent: 5k tokens at first, 50k at the end, thirty to fifty turns."""
    chat = {
        "first_prompt_tokens": {"uniform": {"low": 4500, "high": 5500}},
        "next_prompt_tokens": {"lognormal": {"median": 700, "p95": 3000}},
        "turns": 1000,
        "context_limit_tokens": 50_000,
        "think_time": "25s",
    }
    scenario = users(users=20, chat=chat, start="fresh", run={"duration": "3h"})
    run = serve(build_workload(scenario, 0))
    whole = [part for sent in by_user(run).values() for part in conversations(sent)[:-1]]
    assert all(4500 <= sum(part[0][4:]) <= 5500 for part in whole)
    ends = sorted(part[-1][3] + sum(part[-1][4:]) for part in whole)
    assert ends[-1] <= 50_000
    assert ends[len(ends) // 2] > 48_000


def test_users_are_met_in_the_middle_of_conversations_as_often_as_at_any_other_moment() -> None:
    """The mean turn at the start of a run is that of the whole run: fixed lengths make it (turns − 1)/2."""
    chat = {**FIXED, "turns": 21, "think_time": {"exponential": {"mean": "10s"}}}
    run = serve(build_workload(users(users=2000, chat=chat, run={"duration": "60s"}), 0))
    first = [sent[0].request.turn for sent in by_user(run).values()]
    assert sum(first) / len(first) == pytest.approx(10, abs=0.5)
    assert set(first) == set(range(21))


def test_long_conversations_are_met_more_often_than_short_ones(tmp_path: Path) -> None:
    """One turn or nineteen, equally often: nineteen of twenty users are met in a long one."""
    (tmp_path / "turns.txt").write_text("1\n19\n")
    scenario = users(
        users=1000, chat={**FIXED, "turns": {"empirical": {"file": "turns.txt"}}}, run={"duration": "4min"}
    )
    run = serve(build_workload(scenario.with_base_dir(tmp_path), 0))
    met_in_long = sum(len(conversations(sent)[0]) > 1 or sent[0].request.turn > 0 for sent in by_user(run).values())
    assert met_in_long / 1000 == pytest.approx(0.95, abs=0.03)


def test_a_user_met_in_the_middle_brings_the_whole_context() -> None:
    """100 first, then 10 and 20 a turn: the prompt of turn n has 100 + 30 n tokens, whether n was reached or met."""
    run = serve(build_workload(users(users=50, chat=FIXED), 0))
    assert {request.turn for request in run.sent[:50]} == {0, 1, 2, 3}
    assert all(request.num_prompt_tokens == 100 + 30 * request.turn for request in run.sent)


def test_a_fresh_start_is_a_first_turn() -> None:
    sent = by_user(serve(build_workload(users(start="fresh"), 0)))
    assert {items[0].request.turn for items in sent.values()} == {0}


@pytest.mark.parametrize("num_users", [7, 50, 400])
def test_starts_are_spread_evenly_over_the_ramp_up(num_users: int) -> None:
    scenario = users(ramp_up="10min", start="fresh")
    starts = sorted(
        items[0].request.sent_ns for items in by_user(serve(build_workload(scenario, 0, num_users))).values()
    )
    gaps = [later - former for former, later in pairwise([starts[-1] - 600 * SECOND, *starts])]
    assert len(starts) == num_users
    assert max(gaps) < 3 * 600 * SECOND / num_users


def test_without_a_ramp_up_users_start_within_their_first_wait() -> None:
    chat = {**FIXED, "think_time": "100s"}
    starts = [request.sent_ns for request in serve(build_workload(users(users=40, chat=chat), 0)).sent[:40]]
    assert 0 <= min(starts) < 10 * SECOND
    assert 90 * SECOND < max(starts) < 100 * SECOND


# Shared text


def prefix_streams(run: Run, place: int) -> dict[int, set[int]]:
    """Returns, by user, the streams that stand at this place of their prompts."""
    streams = defaultdict(set)
    for request in run.sent:
        streams[request.user_id].add(request.prompt[place][0])
    return dict(streams)


def test_prefixes_are_shared_by_whom_they_are_shared_by() -> None:
    scopes = ["all", "team", "user", "none"]
    prefix = [{"tokens": 100 + place, "scope": scope} for place, scope in enumerate(scopes)]
    scenario = users(users=12, team_size=4, chat={**FIXED, "shared_prefix": prefix}, run={"duration": "5min"})
    run = serve(build_workload(scenario, 0))
    everyone, team, own, new = (prefix_streams(run, place) for place in range(4))
    assert len(set.union(*everyone.values())) == 1
    for user_id, other in ((0, 3), (0, 4), (7, 8), (8, 11)):
        assert (team[user_id] == team[other]) == (user_id // 4 == other // 4)
    assert len(set.union(*team.values())) == 3
    assert all(len(streams) == 1 for streams in own.values())
    assert len(set.union(*own.values())) == 12
    num_conversations = sum(len(conversations(sent)) for sent in by_user(run).values())
    assert len(set.union(*new.values())) == num_conversations
    assert {tuple(length for _, length in request.prompt[:4]) for request in run.sent} == {(100, 101, 102, 103)}


@pytest.mark.parametrize(("name", "num_texts"), [("system prompt", 1), (None, 2)])
def test_two_classes_have_the_same_text_only_when_it_has_a_name(name: str | None, num_texts: int) -> None:
    prefix = {"tokens": 800, "scope": "all", "name": name}
    classes = [{**CHAT, "shared_prefix": prefix}, {**DOCUMENT, "shared_prefix": prefix}]
    run = serve(build_workload(users(classes=classes, users=20), 0))
    assert len({request.prompt[0] for request in run.sent}) == num_texts


def test_no_stream_is_used_for_two_texts() -> None:
    """Each request's new text and answer are new; only what is shared or repeated comes again."""
    run = serve(build_workload(users(chat={"shared_prefix": {"tokens": 5}}), 0))
    fresh = [stream for request in run.sent for stream in (request.prompt[-1][0], request.output_stream)]
    assert len(set(fresh)) == len(fresh)


# Failures


def test_a_turn_that_times_out_is_tried_again_with_a_doubling_backoff_and_then_given_up() -> None:
    scenario = users(
        users=1, chat=FIXED, start="fresh", ramp_up="0s", client_timeout="10s", retries={"max": 2, "backoff": "4s"}
    )
    run = serve(build_workload(scenario, 0), 60 * SECOND)
    # 0 s, given up at 10; 14, at 24; 32, at 42: then a new conversation after a think time of 5 s.
    assert [(request.attempt, request.sent_ns // SECOND) for request in run.sent[:4]] == [
        (0, 0),
        (1, 14),
        (2, 32),
        (0, 47),
    ]
    assert {request.prompt for request in run.sent[:3]} == {run.sent[0].prompt}
    assert len({request.output_stream for request in run.sent}) == len(run.sent)
    assert run.sent[3].prompt != run.sent[0].prompt


def serve_failing(outcome: Outcome, turn: int, **workload: Any) -> list[ClientRequest]:
    """Returns what one user sends when a turn always fails."""
    scenario = users(users=1, chat=FIXED, start="fresh", **workload)
    fate = lambda request: outcome if request.turn == turn else Outcome.FINISHED  # noqa: E731
    return serve(build_workload(scenario, 0), fate=fate).sent


def test_a_turn_given_up_is_left_out_and_the_next_one_goes_on_from_the_last_answer() -> None:
    sent = serve_failing(Outcome.TIMED_OUT, turn=2)
    assert [request.turn for request in sent[:5]] == [0, 1, 2, 3, 0]
    assert [request.num_prompt_tokens for request in sent[:5]] == [100, 130, 160, 160, 100]
    assert extends(sent[3].prompt, sent[1])


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.NEVER_FITS])
def test_a_refused_turn_ends_the_conversation(outcome: Outcome) -> None:
    """The same context would be refused again, however often it is tried."""
    sent = serve_failing(outcome, turn=2, retries={"max": 5, "backoff": "1s"})
    assert [request.turn for request in sent[:6]] == [0, 1, 2, 0, 1, 2]


def test_a_first_turn_given_up_ends_the_conversation() -> None:
    assert {request.turn for request in serve_failing(Outcome.REJECTED, turn=0)} == {0}


def test_an_agent_without_think_time_does_not_ask_for_ever_within_one_instant() -> None:
    scenario = users(users=1, chat={**FIXED, "think_time": "0s"}, run={"duration": "60s"})
    run = serve(build_workload(scenario, 0), service_ns=0, fate=lambda _: Outcome.REFUSED)
    assert len(run.sent) == 60


def test_no_request_is_sent_after_the_end() -> None:
    workload = build_workload(users(run={"duration": "5min"}), 0)
    assert max(request.sent_ns for request in serve(workload).sent) < workload.arrivals_end_ns == 300 * SECOND


# Sessions


def test_users_leave_when_their_session_is_over_and_come_back_with_a_new_conversation() -> None:
    chat = {**FIXED, "turns": 1000}
    scenario = users(users=1, chat=chat, start="fresh", ramp_up="0s", session={"length": "60s", "pause": "100s"})
    sent = serve(build_workload(scenario, 0), SECOND).sent
    # A turn every 6 s; what would be sent at or after 60 s waits until 160 s.
    starts = [request.sent_ns // SECOND for request in sent if request.turn == 0]
    assert starts[:4] == [0, 160, 320, 480]
    assert [request.turn for request in sent[:11]] == [*range(10), 0]


def test_the_share_of_users_at_work_is_that_of_the_session_from_the_start() -> None:
    """Ten minutes at work, thirty away: a quarter is there, in the first minutes as in the last."""
    session = {"length": {"exponential": {"mean": "10min"}}, "pause": {"exponential": {"mean": "30min"}}}
    chat = {**FIXED, "turns": 100, "think_time": "59s"}
    scenario = users(users=1000, chat=chat, session=session, run={"duration": "1h"})
    sent = serve(build_workload(scenario, 0), SECOND).sent
    for start_min in range(0, 60, 20):  # who is always there sends once a minute
        part = sum(start_min <= request.sent_ns / (60 * SECOND) < start_min + 20 for request in sent)
        assert part / (1000 * 20) == pytest.approx(0.25, abs=0.04)


# Loads


def test_the_load_is_the_number_of_users() -> None:
    assert len(by_user(serve(build_workload(users(), 0, load=23)))) == 23
    assert build_workload(users(), 0, load=0).next_send_ns() is None


def test_varied_context_sets_the_length_of_every_first_prompt_prefix_included() -> None:
    classes = [{**CHAT, "shared_prefix": {"tokens": 800}}, DOCUMENT]
    search = {"vary": "context_tokens", "from": 1000, "to": 32000}
    scenario = users(classes=classes, users=20, search=search, start="fresh")
    for load in (1000, 20_000):
        sent = serve(build_workload(scenario, 0, load=load)).sent
        assert {request.num_prompt_tokens for request in sent if request.turn == 0} == {load}


def test_a_missing_number_is_told() -> None:
    with pytest.raises(UserError, match=r"workload\.users: missing"):
        build_workload(users(users=None), 0)
    with pytest.raises(UserError, match=r"run\.duration: missing"):
        build_workload(users(run={}), 0)
    with pytest.raises(UserError, match=r"search\.vary: request_rate is nothing that a workload of kind users has"):
        build_workload(users(search={"vary": "request_rate", "from": 1, "to": 2}), 0, load=1)
