"""A change's effect is the difference of two searches, and only what can be simulated is."""

import json
from typing import Any

import pytest

from reports.document import Document
from reports.model import build_report
from reports.source import Source
from reports.what_if import estimate_steps, simulate_what_if
from reports.what_if_changes import changes_for
from reports.words import Words
from sim.capacity import find_capacity
from sim.deployment import plan
from sim.records import RunRecord
from sim.scenario.load import override
from sim.scenario.model import Scenario
from tests.reports import sample
from tests.sim.capacity.curves import Served
from tests.sim.results.toys import open_loop_scenario, users_scenario

ONE_SECOND = "ttft.p95 <= 1s"
NUM_BLOCKS = plan(users_scenario(ONE_SECOND)).memory.num_gpu_blocks


def flagged(scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
    """A server whose knee is 30 users, 40 with another budget, 60 with twice the GPUs, 20 with fewer KV blocks."""
    flags, knee = scenario.server.flags, 30.5
    knee = 40.5 if flags.max_num_batched_tokens is not None else knee
    knee = 60.5 if scenario.server.tensor_parallel_size == 2 else knee
    knee = 20.5 if (flags.num_gpu_blocks_override or NUM_BLOCKS) < NUM_BLOCKS else knee
    return Served(lambda at, _: at / knee)(scenario, seed=seed, load=load)


def searched(scenario: Scenario | None = None) -> Source:
    scenario = scenario or users_scenario(ONE_SECOND)
    return Source.of_result(scenario, find_capacity(scenario, flagged), {})


@pytest.fixture(scope="module")
def found() -> Document:
    return simulate_what_if(searched(), flagged)


def by_key(found: Document) -> dict[str, Any]:
    return {change["key"]: change for change in found["changes"]}


def test_every_change_has_the_answer_of_its_own_search(found: Document) -> None:
    changes = by_key(found)
    assert found["baseline"]["value"] == 30
    assert changes["budget_double"]["value"] == 40
    assert changes["tp_double"]["value"] == 60
    assert changes["tp_double"]["low"] == changes["tp_double"]["high"] == 60
    assert all(change["status"] == "simulated" for change in changes.values())


def test_one_thing_is_changed_at_a_time(found: Document) -> None:
    assert all(len(change["changes"]) == 1 for change in found["changes"])
    assert by_key(found)["budget_double"]["changes"] == {"server.flags.max_num_batched_tokens": 4096}


def test_it_is_plain_data(found: Document) -> None:
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_best_come_first_and_what_does_not_help_is_not_shown(found: Document) -> None:
    source = searched()
    source.what_if = found
    report = build_report([source], Words.of("en"))
    assert report.headline is not None
    titles = [change.title for change in report.headline.changes]
    assert titles[0] == "Tensor parallel 1 → 2 (twice the GPUs)"
    assert "30 → 60\u00a0users (+100\u00a0%; 95 % interval 60 to 60)" in report.headline.changes[0].effect
    assert not any("fp8" in title for title in titles)  # 30 users, as before


def test_fewer_blocks_are_simulated_too(found: Document) -> None:
    rows = {row["factor"]: row for row in found["sensitivity"]}
    assert list(rows) == [0.8, 0.9, 1.0, 1.1, 1.2]
    assert rows[0.8]["ttft_p95_ms"] == pytest.approx(30 / 20.5 * 1000, rel=1e-5)
    assert rows[1.2]["met"] is True
    assert rows[0.8]["met"] is False


def test_a_server_that_would_not_start_is_said_not_simulated() -> None:
    tight = users_scenario(ONE_SECOND, changes=["server.flags.max_model_len=32768", "server.gpu=rtx-3090",
                                                "server.tensor_parallel_size=4"])  # fmt: skip
    refused = by_key(simulate_what_if(searched(tight), flagged))["tp_double"]  # 28 heads do not divide by 8
    assert refused["status"] == "refused"
    assert refused["note"]
    assert refused["value"] is None


def test_what_a_profile_did_not_measure_is_not_priced() -> None:
    changes = ["server.profile=qwen2.5-0.5b-l4", "server.model=Qwen/Qwen2.5-0.5B-Instruct", "server.gpu=l4",
               "server.version='0.23'"]  # fmt: skip
    source = searched(users_scenario(ONE_SECOND, changes=changes))
    assert by_key(simulate_what_if(source, flagged))["tp_double"]["status"] == "unmeasured"


def test_nothing_is_changed_where_nothing_binds() -> None:
    source = searched(users_scenario("ttft.p95 <= 1000s"))
    assert source.document["binding_resource"] is None
    what_if = simulate_what_if(source, flagged)
    assert what_if["changes"] == []
    source.what_if = what_if
    assert build_report([source], Words.of("en")).headline is not None


def test_a_single_load_says_whether_a_change_makes_it_hold() -> None:
    scenario = override(users_scenario(ONE_SECOND), {"workload.users": 50, "search": None})
    source = searched(scenario)
    found = simulate_what_if(source, flagged)
    changes = by_key(found)
    assert (changes["tp_double"]["met"], changes["budget_double"]["met"]) == (True, False)
    source.what_if = found
    report = build_report([source], Words.of("en"))
    assert report.headline is not None
    assert [change.effect for change in report.headline.changes] == ["every objective is met"]


@pytest.mark.parametrize(
    ("changes", "key", "offered"),
    [
        ((), "kv_fp8", True),
        (("server.flags.kv_cache_dtype=fp8",), "kv_fp8", False),
        (("server.flags.num_gpu_blocks_override=3000",), "kv_fp8", False),
        ((), "more_memory", True),
        (("server.flags.gpu_memory_utilization=0.97",), "more_memory", False),
        (("server.flags.kv_cache_memory_bytes=4GiB",), "more_memory", False),
        ((), "prefix_caching", False),
        (("server.flags.enable_prefix_caching=false",), "prefix_caching", True),
        (("server.memory.weights_gib=14.2",), "tp_double", False),
    ],
)
def test_only_what_makes_a_difference_is_offered(changes: tuple[str, ...], key: str, offered: bool) -> None:
    scenario = users_scenario(ONE_SECOND, changes=changes)
    keys = [change.key for change in changes_for(scenario, plan(scenario), "kv_blocks")]
    assert (key in keys) is offered
    assert len(keys) <= 5


def test_a_rate_is_searched_near_the_known_one() -> None:
    scenario = open_loop_scenario(ONE_SECOND)
    source = searched(scenario)
    asked = Served(lambda load, seed: load / 9.0)
    simulate_what_if(source, asked)
    known = source.document["supported_users"]["value"]
    loads = [load for load, _ in asked.asked if load is not None]
    assert min(loads) >= known / 8
    assert len(loads) < 300


def test_the_cost_is_told_beforehand() -> None:
    steps = estimate_steps(sample.source())
    assert steps is not None
    detail = sample.source().detail(sample.source().shown_load)
    assert detail is not None
    assert steps > 100 * len(detail.run.steps.end_ns)
    assert estimate_steps(searched(users_scenario("ttft.p95 <= 1000s"))) is None


def test_no_change_is_ranked_that_was_not_simulated(found: Document) -> None:
    source = searched()
    source.what_if = found | {"changes": [change | {"status": "refused"} for change in found["changes"]]}
    report = build_report([source], Words.of("en"))
    assert report.headline is not None
    assert report.headline.changes == ()


OLLAMA = ["server.kind=ollama", "server.ollama.model=qwen2.5:7b", "server.flags.max_model_len=4096"]


def slots(scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
    """A server whose knee is 10 users a slot of Ollama, 100 with vLLM, and twice the batch with static batches."""
    match scenario.server.kind:
        case "ollama":
            knee = 10.5 * (scenario.server.ollama.num_parallel or 1)
        case "static":
            knee = 2.1 * scenario.server.static.batch_size
        case "vllm":
            knee = 100.5
    return Served(lambda at, _: at / knee)(scenario, seed=seed, load=load)


def test_ollama_gets_slots_and_vllm_in_its_place() -> None:
    scenario = users_scenario(ONE_SECOND, changes=OLLAMA)
    found = simulate_what_if(Source.of_result(scenario, find_capacity(scenario, slots), {}), slots)
    values = [(change["key"], change["value"]) for change in found["changes"]]
    assert values == [
        ("slots_double", 21), ("slots_double", 42), ("keep_for_ever", 10), ("ollama_kv_q8", 10), ("use_vllm", 100),
    ]  # fmt: skip
    assert found["sensitivity"] == []  # it has no KV blocks


def test_static_batches_get_a_larger_one_and_vllm_in_their_place() -> None:
    scenario = users_scenario(ONE_SECOND, changes=["server.kind=static"])
    source = Source.of_result(scenario, find_capacity(scenario, slots), {})
    source.what_if = simulate_what_if(source, slots)
    assert [(each["key"], each["value"]) for each in source.what_if["changes"]] == [
        ("batch_double", 33), ("use_vllm", 100),
    ]  # fmt: skip
    for lang in ("en", "pt-BR"):
        headline = build_report([source], Words.of(lang)).headline
        assert headline is not None
        assert headline.changes[0].title.startswith("static → vLLM")


def test_a_changes_search_takes_three_seeds_at_most() -> None:
    asked: list[int] = []

    def counted(scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
        asked.append(seed)
        return flagged(scenario, seed=seed, load=load)

    scenario = users_scenario(ONE_SECOND)
    source = searched(scenario)
    found = simulate_what_if(source, counted)
    assert scenario.run.seeds == 5
    assert set(asked) == {0, 1, 2}
    assert found["seeds"] == 3
