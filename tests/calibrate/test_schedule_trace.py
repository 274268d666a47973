"""Recorded schedules of the real vLLM: every field of every step is equal, and whatever is not is told where."""

import gzip
import json

import pytest

from calibrate.schedule_cases import KINDS
from calibrate.schedule_trace import check_trace, read_trace
from sim.errors import UserError
from tests.factories import REPOSITORY, shared_folder

FIXTURES = sorted((REPOSITORY / "tests/fixtures/schedules").glob("*.jsonl.gz"))
SHARED = shared_folder()
SHARED_TRACES = sorted((SHARED / "oracle/traces").glob("*.jsonl.gz")) if SHARED else []
SMALL = next(path for path in FIXTURES if path.name.startswith("repeat_full-sync"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name.partition(".")[0])
def test_every_recorded_step_is_equal(path):
    assert check_trace(path).difference is None
    assert check_trace(path, reference=True).difference is None


def test_the_fixtures_cover_every_kind_of_case_synchronous_and_asynchronous():
    covered = {tuple(path.name.split("-")[:2]) for path in FIXTURES}
    assert covered == {(kind, mode) for kind in KINDS for mode in ("sync", "async")}


def test_the_fixtures_hold_what_they_are_there_for():
    steps = [step for path in FIXTURES for step in read_trace(path).steps]
    assert sum(len(step["preempted"]) for step in steps) > 100
    assert sum(hit > 0 for step in steps for hit in step["hits"].values()) > 300


@pytest.mark.skipif(not SHARED_TRACES, reason="the shared recordings are not here (HEADCOUNT_SHARED)")
@pytest.mark.parametrize("path", SHARED_TRACES, ids=lambda path: path.name.partition(".")[0])
def test_every_step_of_the_shared_recordings_is_equal(path):
    assert check_trace(path).difference is None


def test_a_comparison_tells_how_much_was_compared():
    comparison, trace = check_trace(SMALL), read_trace(SMALL)
    assert (comparison.path, comparison.num_steps, comparison.num_requests) == (
        SMALL,
        len(trace.steps),
        len(trace.case["requests"]),
    )


def test_joint_aborts_are_explained_where_trying_all_orders_would_take_for_ever():
    path = next(path for path in FIXTURES if "aborts-async-001671" in path.name)
    times = [r["abort_us"] for r in read_trace(path).requests.values() if "abort_us" in r]
    assert sum(times.count(time) > 2 for time in set(times)) >= 5
    assert check_trace(path).difference is None


def tampered(tmp_path, change, path=SMALL):
    """Returns a copy of a trace with something changed in its lines."""
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    change(lines)
    copy = tmp_path / "tampered.jsonl"
    copy.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return copy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("t_us", 1),
        ("start_us", 2),
        ("end_us", 3),
        ("scheduled", [["r0", 4]]),
        ("hits", {"r0": 16}),
        ("preempted", ["r0"]),
        ("blocks", {"r0": [99]}),
        ("running", 77),
        ("waiting", 78),
        ("free_blocks", 79),
        ("finished", ["r9"]),
        ("surprise", True),
    ],
)
def test_a_changed_field_is_told_with_its_step_and_both_values(tmp_path, key, value):
    def change(lines):
        lines[1 + 5][key] = value

    difference = check_trace(tampered(tmp_path, change)).difference
    assert difference is not None
    assert difference.startswith(f"step 5: {key}: expected {json.dumps(value)}, got ")


def test_a_missing_step_and_an_extra_one_are_told(tmp_path):
    num_steps = len(read_trace(SMALL).steps)
    shorter = check_trace(tampered(tmp_path, lambda lines: lines.pop(-2))).difference
    assert shorter == f"number of steps: expected {num_steps - 1}, got {num_steps}"
    longer = check_trace(tampered(tmp_path, lambda lines: lines.insert(-1, {**lines[-2], "t_us": 10**9}))).difference
    assert longer == f"number of steps: expected {num_steps + 1}, got {num_steps}"


@pytest.mark.parametrize("key", ["token_us", "finish_us", "num_preemptions", "num_prompt_tokens", "first_token_us"])
def test_a_changed_time_of_a_request_is_told(tmp_path, key):
    def change(lines):
        lines[-1]["requests"]["r3"][key] = 1

    difference = check_trace(tampered(tmp_path, change)).difference
    assert difference is not None
    assert difference.startswith(f"request r3: {key}: expected 1, got ")


def test_a_missing_request_is_told(tmp_path):
    difference = check_trace(tampered(tmp_path, lambda lines: lines[-1]["requests"].pop("r3"))).difference
    assert difference is not None
    assert difference.startswith("request r3: ")


def test_wrong_blocks_after_joint_aborts_are_still_told(tmp_path):
    """The search for an order of aborts must not explain away what no order explains."""
    path = next(path for path in FIXTURES if "aborts-sync" in path.name)

    def change(lines):
        step = next(line for line in reversed(lines[:-1]) if any(line["blocks"].values()))
        name = next(name for name, blocks in step["blocks"].items() if blocks)
        step["blocks"][name][0] += 1

    assert ": blocks: expected" in str(check_trace(tampered(tmp_path, change, path)).difference)


def test_a_case_that_goes_on_for_longer_than_recorded_is_not_followed_to_its_end(tmp_path):
    path = tampered(tmp_path, lambda lines: lines.__setitem__(slice(6, -1), []))
    assert check_trace(path).difference == "number of steps: expected 5, got 9 or more"


def error_of(path):
    with pytest.raises(UserError) as caught:
        check_trace(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_is_missing_or_cut_short_is_one_clear_line(tmp_path):
    missing = tmp_path / "missing.jsonl"
    assert error_of(missing) == f"{missing}: cannot be read: No such file or directory"

    cut_gzip = tmp_path / "cut.jsonl.gz"
    cut_gzip.write_bytes(SMALL.read_bytes()[:-200])
    assert error_of(cut_gzip).startswith(f"{cut_gzip}: cannot be read: ")

    text = gzip.decompress(SMALL.read_bytes()).decode()
    cut_line = tmp_path / "cut_line.jsonl"
    cut_line.write_text(text[: len(text) // 2])
    assert "not JSON" in error_of(cut_line)
    assert "is the file cut short?" in error_of(cut_line)

    cut_end = tmp_path / "cut_end.jsonl"
    cut_end.write_text("".join(text.splitlines(keepends=True)[:-1]))
    assert "the last line must hold the requests' times; is the file cut short?" in error_of(cut_end)


def test_a_file_that_is_something_else_is_one_clear_line(tmp_path):
    not_gzip = tmp_path / "text.jsonl.gz"
    not_gzip.write_text("hello")
    assert "cannot be read" in error_of(not_gzip)

    wrong = tmp_path / "wrong.jsonl"
    for text, message in [
        ("", ":1:1: not a recorded schedule"),
        ("[1, 2]\n", ":1:1: expected a JSON object, got list"),
        (
            '{"a": 1}\n{"b": 2}\n',
            ":1:1: not a recorded schedule: the first line must hold engine, cost_us and requests",
        ),
        ("\x00\xff", ":1:1: not JSON"),
    ]:
        wrong.write_text(text)
        assert error_of(wrong).startswith(f"{wrong}{message}")
    wrong.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in error_of(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda case: case["engine"].update(max_num_seq=4), "unknown engine keys ['max_num_seq']"),
        (lambda case: case["engine"].update(num_gpu_blocks=5), "num_gpu_blocks (5) must be at least"),
        (lambda case: case["engine"].update(kv_layers=[["linear", 2]]), "kind 'linear', window None, are not"),
        (lambda case: case["cost_us"].pop("base"), "base"),
        (lambda case: case["requests"][0].pop("max_tokens"), "missing 'max_tokens'"),
        (lambda case: case["requests"][0].update(prompt=[[0, 5_000]]), "it must have at least one and fewer than"),
        (lambda case: case["requests"][0].update(prompt=[]), "it must have at least one and fewer than"),
    ],
)
def test_a_case_that_cannot_be_run_is_one_clear_line(tmp_path, change, message):
    path = tampered(tmp_path, lambda lines: change(lines[0]))
    assert error_of(path).startswith(f"{path}:1:1: this case cannot be run: ")
    assert message in error_of(path)
