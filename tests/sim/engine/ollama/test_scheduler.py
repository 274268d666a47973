"""Who gets a model, who waits, who is turned away, and which model has to go (server/sched.go)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.ollama.placement import Host
from sim.engine.ollama.scheduler import START_NS, VRAM_RECOVERY_NS
from sim.records import Outcome
from tests.cases.build import MS, S
from tests.sim.engine.ollama.build import GIB, answers, ask, count, model, placed, records, serve

START_MS = START_NS // MS


# ---- the queue and its 503 ----


@given(number=st.integers(1, 60), max_queue=st.integers(0, 40), faq=st.booleans())
def test_of_a_burst_at_a_cold_model_one_is_in_hand_and_max_queue_wait(number: int, max_queue: int, faq: bool) -> None:
    run = serve([ask(i) for i in range(number)], warm=False, max_queue=max_queue, queue_rule="faq" if faq else "source")
    assert count(run, Outcome.REJECTED) == max(0, number - 1 - max_queue)
    assert count(run, Outcome.FINISHED) == min(number, 1 + max_queue)


def test_a_503_comes_at_once() -> None:
    run = serve([ask(i) for i in range(3)], warm=False, max_queue=1)
    rejected = records(run)[2]
    assert (rejected.outcome, rejected.finish_ns) == (Outcome.REJECTED, 0)
    assert run.ollama is not None
    assert run.ollama.rejected_ns == [0]


@pytest.mark.parametrize("rule", ["faq", "source"])
def test_a_loaded_model_turns_nobody_away(rule: str) -> None:
    run = serve([ask(i) for i in range(100)], max_queue=1, queue_rule=rule)
    assert count(run, Outcome.FINISHED) == 100


def test_the_queue_is_empty_when_the_load_ends_although_nothing_has_been_answered() -> None:
    """The next burst meets a loaded model, so none of it is rejected."""
    first = [ask(i) for i in range(11)]
    second = [ask(100 + i, at_ms=2001) for i in range(50)]
    run = serve(first + second, warm=False, max_queue=10)
    assert count(run, Outcome.REJECTED) == 0


def test_by_the_source_those_who_come_during_a_load_wait_for_it_outside_the_queue() -> None:
    """Once the runner is registered requests wait on its lock; by the FAQ (and before 0.11.5) they queue."""
    requests = [ask(i, at_ms=0 if i == 0 else START_MS + 1) for i in range(20)]
    assert count(serve(requests, warm=False, max_queue=5), Outcome.REJECTED) == 0
    assert count(serve(requests, warm=False, max_queue=5, queue_rule="faq"), Outcome.REJECTED) == 14


def test_a_request_that_gave_up_keeps_its_place_in_the_queue_until_the_loop_meets_it() -> None:
    requests = [ask(0), ask(1, timeout_ms=500), ask(2, at_ms=1000)]
    run = serve(requests, warm=False, max_queue=1, queue_rule="faq")
    assert [records(run)[i].outcome for i in range(3)] == [Outcome.FINISHED, Outcome.TIMED_OUT, Outcome.REJECTED]


# ---- loads ----


def test_the_load_is_in_load_duration_and_the_wait_for_a_slot_is_not() -> None:
    run = serve([ask(0), ask(1)], warm=False)
    first, second = answers(run)[0], answers(run)[1]
    assert first.load_duration == second.load_duration == 2 * S
    assert (first.slot_wait, second.slot_wait) == (0, 100 * MS)
    assert second.total_duration == 2 * S + 200 * MS


def test_requests_in_line_behind_a_load() -> None:
    """Head of the line: by the FAQ a request for a loaded model waits until the one before it has its model."""
    models = [model("loaded", placed(gib=10)), model("cold", placed(gib=13))]
    busy = ask(0, 0, output=1000)  # 10 s: the loaded model is in use, and has to be evicted for the cold one
    requests = [busy, ask(1, 1, at_ms=1000), ask(2, 0, at_ms=1001)]
    source, faq = (serve(requests, models, queue_rule=rule) for rule in ("source", "faq"))
    assert answers(source)[2].load_duration == 0
    # First the other's swap and its answer, then the swap back.
    assert answers(faq)[2].load_duration == 10 * S - 1001 * MS + 2 * (VRAM_RECOVERY_NS + 2 * S) + 100 * MS
    # By the source the victim takes one more request before it goes: the new model waits for that one, too.
    assert answers(source)[1].load_duration == answers(faq)[1].load_duration + 100 * MS
    assert answers(faq)[1].load_duration == 10 * S - 1000 * MS + VRAM_RECOVERY_NS + 2 * S


def test_by_the_source_a_busy_victim_starves_the_new_model() -> None:
    models = [model("busy", placed(gib=10)), model("new", placed(gib=13))]
    stream = [ask(10 + i, 0, at_ms=90 * i) for i in range(100)]  # one each 90 ms, served in 100: never idle for 10 s
    source, faq = (serve([*stream, ask(1, 1, at_ms=50)], models, queue_rule=rule) for rule in ("source", "faq"))
    assert answers(source)[1].load_duration > 9 * S
    assert answers(faq)[1].load_duration < 4 * S


def test_a_client_that_gives_up_during_a_load_aborts_it() -> None:
    run = serve([ask(0, timeout_ms=1000), ask(1, at_ms=1500)], warm=False)
    assert run.ollama is not None
    assert [(load[3], load[2] - load[1]) for load in run.ollama.loads] == [(True, 1 * S), (False, 2 * S)]
    assert answers(run)[1].load_duration == 2 * S


def test_impatient_clients_never_see_the_model_loaded() -> None:
    run = serve([ask(i, at_ms=1000 * i, timeout_ms=900) for i in range(20)], warm=False)
    assert count(run, Outcome.TIMED_OUT) == 20


def test_those_who_waited_for_an_aborted_load_ask_again() -> None:
    run = serve([ask(0, timeout_ms=1000), ask(1, at_ms=500)], warm=False)
    assert answers(run)[1].load_duration == 500 * MS + 2 * S


# ---- evictions ----


def evicted(run_models: list[tuple[str, int | None]], requests: list[tuple[int, float]]) -> list[str]:
    """Runs models of 6 GiB, of which three fit; returns those that had to make room."""
    models = [model(name, placed(gib=6), keep_alive_ms=keep) for name, keep in run_models]
    run = serve([ask(i, m, at_ms=at) for i, (m, at) in enumerate(requests)], models, warm=True, fit_share=1.0)
    assert run.ollama is not None
    return [models[unload[0]].name for unload in run.ollama.unloads if unload[2] == "room"]


def test_the_idle_model_with_the_shortest_keep_alive_goes_first() -> None:
    run_models = [("a", 300_000), ("b", 200_000), ("c", None), ("d", 300_000)]
    assert evicted(run_models, [(3, 10.0)]) == ["b"]


def test_equal_keep_alives_go_by_path() -> None:
    assert evicted([("b", 300_000), ("a", 300_000), ("c", 300_000), ("d", 300_000)], [(3, 10.0)]) == ["a"]


def test_an_idle_model_goes_before_a_busy_one_with_a_shorter_keep_alive() -> None:
    run_models = [("a", 100_000), ("b", 200_000), ("c", 300_000), ("d", 300_000)]
    assert evicted(run_models, [(0, 0.0), (3, 10.0)]) == ["b"]


def test_when_all_are_busy_the_shortest_keep_alive_is_waited_for() -> None:
    run_models = [("a", 300_000), ("b", 100_000), ("c", 300_000), ("d", 300_000)]
    assert evicted(run_models, [(0, 0.0), (1, 0.0), (2, 0.0), (3, 10.0)]) == ["b"]


def test_max_loaded_models_evicts_although_there_is_room() -> None:
    models = [model(name, placed(gib=1)) for name in "abc"]
    run = serve([ask(i, i, at_ms=5000 * i) for i in range(3)], models, warm=False, max_loaded_models=2)
    assert run.ollama is not None
    assert [(models[unload[0]].name, unload[2]) for unload in run.ollama.unloads] == [("a", "room")]


@pytest.mark.parametrize(("gib", "fits"), [(14.3, True), (14.5, False)])
def test_a_model_beside_others_may_take_80_percent_of_what_is_free(gib: float, fits: bool) -> None:
    """24 GiB less 6 leave 18: 80 % of that is 14.4."""
    models = [model("first", placed(gib=6)), model("second", placed(gib=gib))]
    run = serve([ask(0, 0), ask(1, 1, at_ms=1000)], models, warm=False)
    assert run.ollama is not None
    assert bool(run.ollama.unloads) is not fits


def test_the_first_model_loads_whatever_its_size() -> None:
    run = serve([ask(0)], [model("huge", placed(gib=24, predicted_gib=100))], warm=False)
    assert count(run, Outcome.FINISHED) == 1


def test_a_load_that_runs_out_of_memory_is_tried_again_alone() -> None:
    """Predicted are 14 of 18 GiB free, which is let through; with its buffers it takes 19."""
    models = [model("first"), model("second", placed(gib=19, predicted_gib=14))]
    run = serve([ask(0, 0), ask(1, 1, at_ms=1000), ask(2, 0, at_ms=20_000)], models)
    assert run.ollama is not None
    loads = [(models[load[0]].name, (load[2] - load[1]) / S, load[3]) for load in run.ollama.loads]
    assert loads == [("second", 2, True), ("second", 2, False), ("first", 2, False)]
    assert [models[unload[0]].name for unload in run.ollama.unloads] == ["first", "second"]
    assert answers(run)[1].load_duration == 2 * S + VRAM_RECOVERY_NS + 2 * S
    assert count(run, Outcome.FINISHED) == 3


def test_those_who_waited_for_it_wait_on() -> None:
    models = [model("first"), model("second", placed(gib=19, predicted_gib=14))]
    asks = [ask(0, 0, output=300), *(ask(n, 1, at_ms=1000 + 500 * n) for n in range(1, 5))]
    run = serve(asks, models, max_queue=1)
    assert count(run, Outcome.FINISHED) == 5
    assert all(answers(run)[n].load_duration > 3 * S for n in range(1, 5))  # the first answer takes 3 s


def test_releases_that_measure_never_begin_such_a_load() -> None:
    models = [model("first"), model("second", placed(gib=19, predicted_gib=14))]
    run = serve([ask(0, 0), ask(1, 1, at_ms=1000)], models, fit_share=1.0)
    assert run.ollama is not None
    assert [load[3] for load in run.ollama.loads] == [False]


def test_a_second_gpu_takes_the_second_model_and_both_compute_at_full_speed() -> None:
    models = [model("first", placed(gib=15)), model("second", placed(gib=15))]
    both = [ask(0, 0, output=100), ask(1, 1, output=100)]
    two = serve(both, models, host=Host(24 * GIB, 2, 0))
    assert [answer.total_duration for answer in answers(two).values()] == [S, S]


def test_two_models_on_one_gpu_share_its_time() -> None:
    models = [model("first", placed(gib=5)), model("second", placed(gib=5))]
    run = serve([ask(0, 0, output=100), ask(1, 1, output=100)], models, fit_share=1.0)
    assert max(answer.total_duration for answer in answers(run).values()) == pytest.approx(2 * S, rel=0.02)


def test_other_options_reload_the_model() -> None:
    """Two clients with different num_ctx for one file: each request of the one throws out the other's."""
    models = [model("short", path="file"), model("long", placed(num_ctx=8192), path="file")]
    run = serve([ask(i, i % 2, at_ms=10_000 * i) for i in range(6)], models)
    assert run.ollama is not None
    assert [unload[2] for unload in run.ollama.unloads] == ["options"] * 5
    assert [answers(run)[i].load_duration for i in range(1, 6)] == [VRAM_RECOVERY_NS + 2 * S] * 5


def test_another_keep_alive_is_no_reason_to_reload() -> None:
    """Two clients of one file who differ in keep_alive alone: the last one's counts."""
    models = [model("long", path="file", keep_alive_ms=None), model("short", path="file", keep_alive_ms=1000)]
    run = serve([ask(0, 0), ask(1, 1, at_ms=5000), ask(2, 0, at_ms=60_000)], models)
    assert run.ollama is not None
    assert [unload[1:] for unload in run.ollama.unloads] == [(6100 * MS, "keep_alive")]
    assert [answers(run)[i].load_duration // MS for i in range(3)] == [0, 0, 2000]


# ---- keep-alive ----


def loads_at(keep_alive_ms: int | None, *at_ms: float) -> list[int]:
    """Returns the load_duration of requests at these times, in ms."""
    requests = [ask(i, at_ms=at) for i, at in enumerate(at_ms)]
    run = serve(requests, [model(keep_alive_ms=keep_alive_ms)], warm=False)
    return [answers(run)[i].load_duration // MS for i in range(len(at_ms))]


def test_an_idle_model_is_unloaded_after_its_keep_alive() -> None:
    # Loaded until 2,000; the answer ends at 2,100; unloaded at 302,100.
    assert loads_at(300_000, 0, 302_099) == [2000, 0]
    assert loads_at(300_000, 0, 302_101) == [2000, 2000]


def test_each_request_starts_the_time_anew() -> None:
    assert loads_at(300_000, 0, 200_000, 400_000, 600_000) == [2000, 0, 0, 0]


def test_a_keep_alive_of_0_unloads_at_once_and_a_negative_one_never() -> None:
    assert loads_at(0, 0, 5000, 10_000) == [2000, 2000, 2000]
    assert loads_at(None, 0, 10_000_000) == [2000, 0]


def test_a_keep_alive_that_runs_out_keeps_no_run_going() -> None:
    run = serve([ask(0)], warm=False)
    assert run.end_ns == 2 * S + 100 * MS
