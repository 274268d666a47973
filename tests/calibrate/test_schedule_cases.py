"""Random cases: the same seed gives the same case, every case can be run, and every kind is about what it says."""

import json
import subprocess
import sys

import pytest

from calibrate.schedule_cases import KINDS, generate_case, main, random_cases
from calibrate.schedule_replay import replay_case
from tests.factories import REPOSITORY


@pytest.mark.parametrize("kind", KINDS)
def test_every_case_can_be_run_and_each_of_its_requests_ends(kind):
    for seed in range(4):
        case = generate_case(kind, seed, async_scheduling=seed % 2 == 1, num_requests=10)
        replay = replay_case(case, case["name"], max_steps=20_000)
        assert not replay.stopped
        for name, stats in replay.requests.items():
            spec = next(spec for spec in case["requests"] if spec["id"] == name)
            ended = "finish_us" in stats or "abort_us" in stats
            never_came = "arrival_us" not in stats and "after" in spec
            assert ended or never_came, f"{case['name']}: {name}"


def test_the_same_seed_gives_the_same_case_and_another_seed_another_one():
    for kind in KINDS:
        assert generate_case(kind, 5, num_requests=6) == generate_case(kind, 5, num_requests=6)
        assert generate_case(kind, 5, num_requests=6)["requests"] != generate_case(kind, 6, num_requests=6)["requests"]


def test_all_kinds_come_in_turn_synchronous_and_asynchronous():
    cases = list(random_cases(3, 2 * len(KINDS), num_requests=3))
    assert [case["name"].split("-")[0] for case in cases[::2]] == list(KINDS)
    assert [case["engine"]["async_scheduling"] for case in cases] == [False, True] * len(KINDS)
    assert len({case["name"] for case in cases}) == len(cases)


def draw(kind, num_seeds=6):
    return [generate_case(kind, seed, async_scheduling=seed % 2 == 1) for seed in range(num_seeds)]


@pytest.mark.parametrize(
    ("kind", "flag", "value"),
    [
        ("no_chunk", "enable_chunked_prefill", False),
        ("no_cache", "enable_prefix_caching", False),
        ("priority", "policy", "priority"),
        ("long_prefill", "max_model_len", 4096),
    ],
)
def test_a_kind_sets_the_flag_it_is_about(kind, flag, value):
    assert all(case["engine"][flag] == value for case in draw(kind))


def test_kinds_about_requests_have_such_requests():
    assert all(any("abort_us" in request for request in case["requests"]) for case in draw("aborts"))
    assert all(any("after" in request for request in case["requests"]) for case in draw("sessions"))
    assert all(len(case["requests"]) >= 600 for case in draw("stress", 2))
    for case in draw("length_cap"):
        longest = [sum(n for _, n in r["prompt"]) + r["max_tokens"] for r in case["requests"]]
        assert max(longest) > case["engine"]["max_model_len"]


def test_cases_are_written_one_file_each(tmp_path):
    assert main(["--seed", "1", "--count", "3", "--kind", "tight", "--num-requests", "2", "--out", str(tmp_path)]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["tight-async-001001.json", "tight-sync-001000.json", "tight-sync-001002.json"]
    case = json.loads((tmp_path / names[0]).read_text())
    assert case == generate_case("tight", 1001, async_scheduling=True, num_requests=2)


def test_cases_and_recorder_need_the_standard_library_alone():
    """They run in vLLM's environment, which has none of our dependencies; and vllm itself is imported on first use."""
    code = (
        "import sys; before = set(sys.modules); import calibrate.schedule_cases, calibrate.record_schedule;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - sys.stdlib_module_names - {'calibrate', 'sim'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
