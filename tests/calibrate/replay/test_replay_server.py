"""The replayed server: the profile's own, changed by a file of flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.replay_server import choose_server, describe_server
from sim.engine.profile import load_profile
from sim.errors import UserError

BASE = {"model": "Qwen/Qwen3-8B", "gpu": "h100-80gb"}


def test_a_profile_is_its_own_server() -> None:
    choice = choose_server(load_profile("qwen2.5-0.5b-l4"))
    assert choice.server.model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert choice.server.version == "0.23.0"
    assert choice.server.flags.max_model_len == 8192
    assert choice.server.profile == "qwen2.5-0.5b-l4"
    assert choice.plan().profile is not None


@pytest.mark.parametrize(
    "text",
    [
        "max_num_seqs: 7\nversion: '0.30'\nkv_cache_gib: 3\n",
        "flags: {max_num_seqs: 7}\nvllm_version: '0.30'\nmemory: {kv_cache_gib: 3}\n",
        "server: {flags: {max_num_seqs: 7}, version: '0.30', memory: {kv_cache_gib: 3}}\n",
        '{"max_num_seqs": 7, "vllm_version": "0.30", "kv_cache_gib": 3}',
    ],
)
def test_flags_are_found_wherever_they_stand(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.yaml").write_text(text)
    server = describe_server(BASE, tmp_path / "f.yaml").server
    assert server.flags.max_num_seqs == 7
    assert server.version == "0.30"
    assert server.memory.kv_cache_gib == 3


def test_the_pool_and_the_client_have_their_recorded_names(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"num_gpu_blocks": 18038, "client_max_concurrency": 256}')
    choice = describe_server(BASE, tmp_path / "f.json")
    assert choice.client_max_concurrency == 256
    assert choice.plan().cache_config.num_gpu_blocks == 18038


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seqs: 7\nmax_num_seq: 8\n", "f.yaml:2:1: max_num_seq: unknown key; did you mean 'max_num_seqs'?"),
        ("max_num_seqs: no\n", "flags.max_num_seqs: Input should be a valid integer"),
        ("max_num_seqs: [\n", "not valid YAML"),
        ("- 1\n", "expected flags of the server"),
        ("client_max_concurrency: 0\n", "client_max_concurrency: got 0; expected a whole number, at least 1"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        describe_server(BASE, tmp_path / "f.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        describe_server(BASE, tmp_path / "none.yaml")
