"""Profiles: the format, its errors with file, line and column, and the shipped profiles beside their own data."""

from __future__ import annotations

import heapq
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.engine.fitted import FittedModel
from sim.engine.profile import (
    PROFILES_DIR,
    ClientSide,
    Profile,
    for_server,
    load_profile,
    profile_mismatches,
    profile_names,
    save_profile,
)
from sim.engine.profile_terms import FittedStepTime, LinearStepTime
from sim.engine.recorded import LinearCost
from sim.engine.step_time import Batch, ClientLatency, StepTimeModel
from sim.errors import UserError

L4 = "qwen2.5-0.5b-l4"

SMALL = """\
format: 1
name: small
calibrated: prior
date: 2026-11-29
source: a test
data: [none]
server: {model: Qwen/Qwen3-14B, gpu: h100, vllm_version: "0.23.0"}
step_time:
  kind: fitted
  floor_us: 11000
  per_token_us: {value: 41.0, stderr: 0.3}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return path


def error_of(tmp_path: Path, text: str) -> str:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert "\n" not in message
    return message.removeprefix(f"{path}:")


# --- the format ---------------------------------------------------------------------------------------------------


def test_numbers_are_plain_or_with_an_error(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path, SMALL))
    model = profile.step_time_model()
    assert isinstance(model, FittedModel)
    assert (model.coefficients.floor_ns, model.coefficients.token_ns) == (11e6, 41e3)
    assert (model.name, model.calibrated) == ("small", False)


def test_every_term_of_the_model_can_be_written(tmp_path: Path) -> None:
    text = (
        SMALL
        + """\
  moe: {growth_us: 5000, num_experts: 128, experts_per_token: 4}
  tile_tokens: 128
  overlap: 0.9
  compute_table_us: [[0, 0], [256, 2000], [2048, 15000.5]]
  decode_table_us: [[1, 5100], [32, 7100]]
  per_attention_pair_ns: 1.5
  per_decode_us: 21
  per_decode_context_token_ns: 59
  per_chunk_context_token_ns: 10
  per_request_us: 3
  graph_sizes: [1, 2, 4, 8]
  mixed_graph_us: 1460
  mixed_eager_us: 7290
  host_us: 1200
  host_per_request_us: 12
  covariance: {names: [floor_us, per_token_us], matrix: [[900, -1.5], [-1.5, 0.09]]}
valid_up_to: {num_tokens: 8192, num_requests: 256}
client_latency: {request_ms: 3, per_prompt_token_us: 0.5, response_ms: {value: 1, stderr: 0.2}, serial_ms: 0.25}
"""
    )
    profile = load_profile(written(tmp_path, text))
    model = profile.step_time_model(async_scheduling=False)
    assert isinstance(model, FittedModel)
    c = model.coefficients
    assert (c.moe_growth_ns, c.num_experts, c.experts_per_token, c.tile, c.overlap) == (5e6, 128, 4, 128, 0.9)
    assert (c.compute_table[2], c.decode_table[0]) == ((2048, 15_000_500.0), (1, 5.1e6))
    assert (c.attention_pair_ns, c.decode_ns, c.decode_context_ns, c.chunk_context_ns) == (1.5, 21e3, 59, 10)
    assert (c.request_ns, c.graph_sizes) == (3e3, (1, 2, 4, 8))
    assert (c.mixed_graph_ns, c.mixed_eager_ns, c.host_ns, c.host_request_ns) == (1.46e6, 7.29e6, 1.2e6, 12e3)
    assert not model.async_scheduling
    assert profile.latency() == ClientLatency(3_000_000, 500.0, 1_000_000, 250_000)
    model.step_time(Batch.of([10] * 300))
    assert len(model.out_of_range()) == 1


def test_a_linear_profile_is_the_recorded_schedules_cost(tmp_path: Path) -> None:
    text = SMALL[: SMALL.index("step_time")] + "step_time: {kind: linear, base_us: 100, per_seq_us: 2}\n"
    model = load_profile(written(tmp_path, text)).step_time_model()
    assert model == LinearCost(base=100, per_seq=2, name="small")


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_written_is_the_profile_read(tmp_path: Path, name: str) -> None:
    profile = load_profile(name)
    save_profile(profile, tmp_path / "copy.yaml")
    assert load_profile(tmp_path / "copy.yaml") == profile
    assert [p.name for p in tmp_path.iterdir()] == ["copy.yaml"]


def test_a_profile_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        save_profile(load_profile(L4), tmp_path / "missing" / "p.yaml")
    assert list(tmp_path.iterdir()) == []


def test_the_documented_example_is_a_profile_and_every_term_is_documented(tmp_path: Path) -> None:
    text = (PROFILES_DIR / "README.md").read_text()
    example = text.split("```yaml\n")[1].split("```")[0].replace("{kind: …}", "{kind: fitted, floor_us: 5000}")
    assert load_profile(written(tmp_path, example)).errors[0].rows[0].error_percent == pytest.approx(11.2, abs=0.05)
    kinds = (FittedStepTime, LinearStepTime, ClientSide)
    assert [key for kind in kinds for key in kind.model_fields if key not in text] == []
    assert [name for name in profile_names() if f"[{name}]({name}.yaml)" not in text] == []


# --- bad files ----------------------------------------------------------------------------------------------------


FLOOR = "  floor_us: 11000"
BAD = [
    (FLOOR, "  flor_us: 11000", "10:3: step_time.flor_us: unknown key; did you mean 'floor_us'?"),
    (FLOOR, "  floor_us: -1", "10:3: step_time.floor_us: should be greater than or equal to 0; got -1"),
    (FLOOR, "  floor_us: .inf", "10:3: step_time.floor_us: should be a finite number; got inf"),
    (FLOOR, "  floor_us: 11ms", "10:3: step_time.floor_us: "),
    (FLOOR, "  decode_table_us: [[1, 2, 3]]", "10:3: step_time.decode_table_us: expected a list of pairs"),
    (FLOOR, "  decode_table_us: [[2, 5], [1, 6]]", "8:1: step_time: decode_table: the counts must grow"),
    (FLOOR, "  covariance: {names: [floor_us], matrix: [[1, 2]]}", "10:3: step_time.covariance: 1 names need a matrix"),
    (
        FLOOR,
        "  covariance: {names: [floor_us, overlap], matrix: [[1, 2], [3, 4]]}",
        "10:3: step_time.covariance: not symmetric at overlap, floor_us: 3.0 and 2.0",
    ),
    (
        FLOOR,
        "  covariance: {names: [flor_us], matrix: [[1]]}",
        "8:1: step_time: covariance: flor_us is no coefficient of this model",
    ),
    (FLOOR, "  covariance: {names: [tile_tokens], matrix: [[1]]}", "8:1: step_time: covariance: tile_tokens is no"),
    ("value: 41.0, ", "", "11:3: step_time.per_token_us.value: this key is required"),
    ("stderr: 0.3", "sterr: 0.3", "11:31: step_time.per_token_us.sterr: unknown key; did you mean 'stderr'?"),
    ("kind: fitted", "kind: fited", "8:1: step_time.kind: got 'fited'; allowed: 'fitted', 'linear'"),
    ("  kind: fitted\n", "", "8:1: step_time.kind: this key is required; one of 'fitted', 'linear'"),
    ("source: a test\n", "", "1:1: source: this key is required"),
    ("format: 1", "format: 2", "1:1: format: should be 1; got 2"),
    ("calibrated: prior", "calibrated: maybe", "3:1: calibrated: should be True or 'prior'; got 'maybe'"),
    ("calibrated: prior", "calibrated: true", "1:1: calibrated: true needs errors"),
    ("date: 2026-11-29", "date: soon", "4:1: date: should be a valid date; got 'soon'"),
    (
        "data: [none]",
        "data: [none]\nclient_latency: {serial_ms: -1}",
        "7:18: client_latency.serial_ms: should be greater than",
    ),
    (
        "data: [none]",
        "data: [none]\nclient_latency: {seral_ms: 1}",
        "7:18: client_latency.seral_ms: unknown key; did you mean",
    ),
    ("data: [none]", "data: []", "6:1: data: should have at least 1 item; got []"),
    ("data: [none]", "data: [none", "7:7: not valid YAML: "),
    ('"0.23.0"', "0.23", "7:44: server.vllm_version: should be a valid string; got 0.23"),
    ("data: [none]", "data: [none]\n7: seven", "7:1: 7: "),
    (FLOOR, "  floor_us: .nan", "10:3: step_time.floor_us: "),
    (FLOOR, "  floor_us: yes", "10:3: step_time.floor_us: "),
    ("name: small", "name: small\nname: other", '3:1: not valid YAML: found duplicate key "name"'),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD)
def test_bad_profiles_are_refused_with_their_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    assert error_of(tmp_path, SMALL.replace(old, new)).startswith(message)


@pytest.mark.parametrize("text", ["", "- a list\n", "just text\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert "1:1: expected a mapping" in error_of(tmp_path, text)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        load_profile(tmp_path / "p.yaml")


def test_unknown_names_are_answered_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"profile 'qwen2.5-0.5b-l40': no shipped profile .* did you mean .*l4'"):
        load_profile("qwen2.5-0.5b-l40")
    with pytest.raises(UserError, match=r"known: .*qwen2\.5-0\.5b-l4"):
        load_profile("zzz")
    with pytest.raises(UserError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_profile(tmp_path / "nowhere.yaml")


# --- what was measured, and what is asked ---------------------------------------------------------------------------


def server(profile: Profile, **changes: Any) -> Any:
    measured = profile.server
    flags = SimpleNamespace(**{"dtype": None, "enforce_eager": None, **changes.pop("flags", {})})
    values = {
        "model": measured.model, "gpu": "NVIDIA L4", "version": "0.23", "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1, "data_parallel_size": 1, "flags": flags,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def test_the_measured_server_has_no_mismatch() -> None:
    profile = load_profile(L4)
    assert profile_mismatches(profile, server(profile, model="qwen2.5-0.5b")) == []  # the same shape
    assert profile_mismatches(profile, server(profile, data_parallel_size=2)) == []
    assert profile_mismatches(profile, server(profile, flags={"dtype": "auto", "async_scheduling": True})) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "Qwen/Qwen2.5-7B-Instruct"}, "model Qwen/Qwen2.5-0.5B-Instruct; this server has Qwen/Qwen2.5-7B"),
        ({"model": "./my-model"}, "this server has ./my-model"),
        ({"gpu": "h100"}, "gpu l4; this server has h100"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 1; this server has 2"),
        ({"version": "0.32"}, "version 0.23; this server has 0.32"),
        ({"flags": {"enforce_eager": True}}, "enforce_eager False; this server has True"),
        ({"flags": {"async_scheduling": False}}, "async_scheduling True; this server has False"),
        ({"flags": {"kv_cache_dtype": "fp8"}}, "kv_cache_dtype auto; this server has fp8"),
        ({"flags": {"enable_expert_parallel": True}, "data_parallel_size": 1}, "enable_expert_parallel False"),
    ],
)
def test_another_server_is_told(changes: dict[str, Any], told: str) -> None:
    profile = load_profile(L4)
    mismatches = profile_mismatches(profile, server(profile, **changes))
    assert len(mismatches) == 1
    assert told in mismatches[0]
    assert mismatches[0].startswith(f"profile {L4} was measured with ")


def test_a_profile_of_another_model_or_gpu_is_a_prior_and_one_of_another_release_is_not() -> None:
    profile = load_profile(L4)
    for changes in ({"model": "Qwen/Qwen2.5-7B-Instruct"}, {"gpu": "h100"}, {"tensor_parallel_size": 2}):
        assert for_server(profile, server(profile, **changes)).calibrated == "prior"
    for changes in ({}, {"version": "0.32"}):
        assert for_server(profile, server(profile, **changes)) is profile


# --- the shipped profiles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_have_the_name_of_their_file_and_say_their_errors(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.calibrated == "prior" or profile.errors


# Qwen2.5-0.5B on an L4, 256 prompt and 128 output tokens, closed loop: the published table.
# concurrency: output tokens/s, TTFT p50, ITL p50, E2E p50 [ms]
L4_TABLE = {
    1: (168, 27.0, 5.1, 679), 2: (367, 37.8, 5.2, 698), 4: (698, 50.1, 5.3, 722),
    8: (1312, 60.9, 5.5, 772), 16: (2277, 103.8, 6.0, 880), 32: (3773, 135.3, 7.1, 1082),
}  # fmt: skip


PROMPT, OUTPUT, BUDGET = 256, 128, 2048


def test_the_published_table_is_consistent_with_itself() -> None:
    """E2E = TTFT + 127 ITL: the first token, then a gap for each of the other 127."""
    computed = {concurrency: ttft + 127 * itl for concurrency, (_, ttft, itl, _) in L4_TABLE.items()}
    assert (round(computed[1]), round(computed[32])) == (675, 1037)
    for concurrency, (_, _, _, e2el) in L4_TABLE.items():
        assert computed[concurrency] == pytest.approx(e2el, rel=0.06)


@pytest.mark.parametrize("concurrency", L4_TABLE)
def test_l4_decode_steps_are_the_measured_gaps(concurrency: int) -> None:
    model = load_profile(L4).step_time_model()
    step_ms = model.step_time(Batch.of([256 + 64] * concurrency)) / 1e6
    assert step_ms == pytest.approx(L4_TABLE[concurrency][2], rel=0.03)
    assert model.out_of_range() == []


@pytest.mark.parametrize("concurrency", L4_TABLE)
def test_l4_replayed_gives_the_errors_that_the_profile_states(concurrency: int) -> None:
    profile = load_profile(L4)
    model, latency = profile.step_time_model(), profile.latency()
    tokens_per_s, ttft, itl, e2el = closed_loop(model, latency, concurrency, num_requests=max(20, 10 * concurrency))
    table = next(t for t in profile.errors if t.run == f"concurrency {concurrency}")
    stated = {row.metric: row for row in table.rows}
    assert tuple(row.measured for row in stated.values()) == (ttft_ := L4_TABLE[concurrency])[1:] + ttft_[:1]
    assert stated["ttft_ms"].predicted == pytest.approx(ttft, abs=0.06)
    assert stated["itl_ms"].predicted == pytest.approx(itl, abs=0.06)
    assert stated["e2el_ms"].predicted == pytest.approx(e2el, abs=0.6)
    assert stated["output_throughput_per_s"].predicted == pytest.approx(tokens_per_s, abs=0.6)
    assert abs(stated["itl_ms"].error_percent) < 3
    assert abs(stated["e2el_ms"].error_percent) < 3
    assert abs(stated["ttft_ms"].error_percent) < 20
    assert abs(stated["output_throughput_per_s"].error_percent) < (15 if concurrency == 1 else 5)
    assert model.out_of_range() == []


@dataclass
class Sent:
    """A request of the replay; its tokens are counted when scheduled (`placed`) and when out (`times_ns`)."""

    sent_ns: int
    computed: int = 0
    placed: int = 0
    times_ns: list[int] = field(default_factory=list)


def closed_loop(
    model: StepTimeModel, latency: ClientLatency, concurrency: int, num_requests: int
) -> tuple[float, float, float, float]:
    """Replays a closed loop of equal requests on the bare rules: chunked prefill in order of arrival, a step ahead.

    Returns:
        Output tokens per second, and the medians of TTFT, ITL and E2E in milliseconds.
    """
    delay = latency.request_ns + round(latency.per_prompt_token_ns * PROMPT)
    requests = [Sent(0) for _ in range(concurrency)]
    arriving = [(delay, i) for i in range(concurrency)]
    running: list[Sent] = []
    in_flight: list[tuple[int, list[Sent]]] = []
    now = free = 0
    while True:
        while arriving and arriving[0][0] <= now:
            running.append(requests[heapq.heappop(arriving)[1]])
        step, sampled = schedule(running)
        if step.num_requests:
            free = max(now, free) + model.step_time(step)
            in_flight.append((free, sampled))
        if in_flight and (len(in_flight) == 2 or not step.num_requests):
            now, sampled = in_flight.pop(0)
            for request in sampled:
                request.times_ns.append(now + latency.response_ns)
                if len(request.times_ns) == OUTPUT:
                    running.remove(request)
                    if len(requests) < num_requests:
                        heapq.heappush(arriving, (request.times_ns[-1] + delay, len(requests)))
                        requests.append(Sent(request.times_ns[-1]))
        elif not in_flight:
            if not arriving:
                break
            now = arriving[0][0]
    gaps = [b - a for r in requests for a, b in zip(r.times_ns, r.times_ns[1:], strict=False)]
    return (
        1e9 * OUTPUT * len(requests) / max(r.times_ns[-1] for r in requests),
        statistics.median(r.times_ns[0] - r.sent_ns for r in requests) / 1e6,
        statistics.median(gaps) / 1e6,
        statistics.median(r.times_ns[-1] - r.sent_ns for r in requests) / 1e6,
    )


def schedule(running: list[Sent]) -> tuple[Batch, list[Sent]]:
    decodes: list[int] = []
    chunks: list[tuple[int, int]] = []
    sampled: list[Sent] = []
    budget = BUDGET
    for request in running:
        goal = PROMPT + request.placed
        tokens = min(goal - request.computed, budget) if request.placed < OUTPUT else 0
        if tokens == 1:
            decodes.append(request.computed)
        elif tokens:
            chunks.append((tokens, request.computed))
        budget -= tokens
        request.computed += tokens
        if tokens and request.computed == goal:
            request.placed += 1
            sampled.append(request)
    return Batch.of(decodes, chunks), sampled


def test_signed_errors() -> None:
    row = load_profile(L4).errors[0].rows[0]
    assert replace_row(row, 100.0, 90.0).error_percent == pytest.approx(-10)
    assert replace_row(row, 0.0, 0.0).error_percent == 0


def replace_row(row: Any, measured: float, predicted: float) -> Any:
    return row.model_copy(update={"measured": measured, "predicted": predicted})
