"""Each symptom is found in a world that has it, and not in one that nearly has it."""

import copy

import pytest

from reports.diagnosis import find_symptoms
from reports.source import Detail
from reports.words import LANGUAGES, Words
from sim.records import Outcome, RequestLog
from sim.results.metrics import summarize
from tests.reports.worlds import run, symptoms
from tests.sim.results.toys import S, empty_run, finished, log_steps, open_loop_scenario, request

F = "server.flags."
DOCUMENTS = "workload.classes.1.share=0.2"
RATE = "workload.request_rate="
LONGER = "workload.classes.0.prompt_tokens=900"
SHORT = "workload.classes.0.output_tokens=10"
HALF_SECOND = "objectives=['ttft.p95 <= 500ms']"
SMALL = ("workload.classes.1.first_prompt_tokens=1000", f"{F}max_model_len=4096")
L4 = ("server.profile=qwen2.5-0.5b-l4", "server.model=Qwen/Qwen2.5-0.5B-Instruct", "server.gpu=l4",
      "server.version='0.23'")  # fmt: skip
PEAKS = "workload.peaks={factor: 100, duration: 1s, every: 20s}"

# symptom, world, what makes it, what nearly makes it
RULES: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = [
    ("freeze", "chat", (DOCUMENTS,), (DOCUMENTS, f"{F}max_num_batched_tokens=256")),
    ("freeze", "chat", (DOCUMENTS,), ()),
    (
        "stop_resume",
        "public",
        (f"{RATE}16", f"{F}num_gpu_blocks_override=1100"),
        (f"{RATE}12", f"{F}num_gpu_blocks_override=1100"),  # two preemptions of 700 requests
    ),
    ("all_slower", "public", (f"{RATE}24", f"{F}max_num_seqs=256"), (f"{RATE}8", f"{F}max_num_seqs=256")),
    ("saturated", "public", (f"{RATE}3", f"{F}max_num_seqs=4"), (f"{RATE}1.8", f"{F}max_num_seqs=4", HALF_SECOND)),
    (
        "first_word_max_num_seqs",
        "public",
        (f"{RATE}1.8", f"{F}max_num_seqs=4", HALF_SECOND),
        (f"{RATE}1.2", f"{F}max_num_seqs=4", HALF_SECOND),
    ),
    (
        "first_word_prefill",
        "public",
        (f"{RATE}0.1", "workload.classes.0.prompt_tokens=12000", "objectives=['ttft.p95 <= 1s']"),
        (f"{RATE}0.1", "workload.classes.0.prompt_tokens=3000", "objectives=['ttft.p95 <= 1s']"),
    ),
    ("first_word_client", "public", (*L4, "objectives=['ttft.p95 <= 20ms']"), (*L4, "objectives=['ttft.p95 <= 50ms']")),
    (
        "first_word_token_budget",
        "bench",
        ("workload.max_concurrency=40", HALF_SECOND),
        ("workload.max_concurrency=80",),  # most wait for the budget, but those who wait longest for a seat
    ),
    (
        "first_word_kv_blocks",
        "public",
        (f"{RATE}3", f"{F}max_model_len=2048", f"{F}num_gpu_blocks_override=200", LONGER),
        (f"{RATE}3", f"{F}max_model_len=2048", LONGER),
    ),
    ("evicted", "chat", (*SMALL, f"{F}num_gpu_blocks_override=300"), (*SMALL, f"{F}num_gpu_blocks_override=700")),
    ("caching_off", "chat", (f"{F}enable_prefix_caching=false",), ()),
    ("bursts", "public", (f"{RATE}0.5", PEAKS, SHORT, f"{F}max_num_seqs=4"), (f"{RATE}0.5", PEAKS, SHORT)),
    ("client_bound", "bench", (), ("workload.max_concurrency=64",)),
    ("rejected", "public", (f"{RATE}8", f"{F}max_num_queued_reqs=8"), (f"{RATE}8", f"{F}max_num_queued_reqs=80")),
    ("timed_out", "public", ("workload.client_timeout=1s",), ("workload.client_timeout=5s",)),
    (
        "refused",
        "public",
        ("workload.classes.0.prompt_tokens={uniform: {low: 200, high: 300}}", f"{F}max_model_len=290"),
        ("workload.classes.0.prompt_tokens={uniform: {low: 200, high: 289}}", f"{F}max_model_len=290"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "world", "changes", "near"), RULES, ids=[f"{rule[0]}-{n}" for n, rule in enumerate(RULES)]
)
def test_a_symptom_is_found_where_it_is_and_not_where_it_nearly_is(
    key: str, world: str, changes: tuple[str, ...], near: tuple[str, ...]
) -> None:
    assert key in symptoms(world, changes)
    assert key not in symptoms(world, near)


def test_a_calm_server_has_no_symptom() -> None:
    assert symptoms("chat") == {}


def test_requests_that_can_never_be_served_are_named_first() -> None:
    run_record = empty_run()
    run_record.requests = RequestLog(finished(n, (100 + n) * S, S // 10) for n in range(50))
    log_steps(run_record)
    run_record.arrivals_end_ns = run_record.end_ns = 1000 * S
    scenario = open_loop_scenario("ttft.p95 <= 1s")
    good = find_symptoms(Detail(1.0, 0, run_record, summarize(run_record, scenario)), ())
    assert good == []
    run_record.requests.append(request(50, 200 * S, outcome=Outcome.NEVER_FITS, finish_ns=200 * S))
    found = find_symptoms(Detail(1.0, 0, run_record, summarize(run_record, scenario)), ())
    assert found[0].key == "never_fits"
    assert found[0].values["count"] == 1


def test_the_numbers_of_a_freeze_are_those_of_the_step_log() -> None:
    detail, freeze = run("chat", (DOCUMENTS,)), symptoms("chat", (DOCUMENTS,))["freeze"]
    log = detail.run.steps
    longest_ms, tokens = freeze.values["longest"][0], freeze.values["tokens"][0]
    assert tokens == 2048 - freeze.values["answers"]  # a document fills what the answers leave of the budget
    durations = {round((end - start) / 1e6, 6) for start, end in zip(log.start_ns, log.end_ns, strict=True)}
    assert any(longest_ms == pytest.approx(duration, rel=0.2) for duration in durations)


def test_a_promise_decides_what_is_slow() -> None:
    lenient = ("objectives=['ttft.p95 <= 10s']", f"{RATE}1.8", f"{F}max_num_seqs=4")
    assert "first_word_max_num_seqs" not in symptoms("public", lenient)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("rule", RULES, ids=[f"{rule[0]}-{n}" for n, rule in enumerate(RULES)])
def test_every_symptom_has_words_and_numbers(
    rule: tuple[str, str, tuple[str, ...], tuple[str, ...]], lang: str
) -> None:
    key, world, changes, _ = rule
    symptom, words = copy.deepcopy(symptoms(world, changes)[key]), Words.of(lang)
    texts = [symptom.text(words, part) for part in ("symptom", "cause", "evidence", "cure")]
    assert all(texts)
    assert not any("{" in text or "nan" in text for text in texts)
    assert any(character.isdigit() for character in texts[2])
