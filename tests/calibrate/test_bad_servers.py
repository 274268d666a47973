"""Whatever a server does, `calibrate` and `spot-check` end, say it in a line, keep what came, and write no profile."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import calibrate.http_client
from sim.cli import main
from tests.calibrate.fake_server import FakeServer

SCENARIO = """
name: check
server: {model: Qwen/Qwen3-0.6B, gpu: h100, flags: {max_model_len: 4096, num_gpu_blocks_override: 400}}
workload: {kind: closed_loop, num_requests: 30, max_concurrency: 2, classes: [{name: a, prompt_tokens: 30,
  output_tokens: 4}]}
"""
COMMANDS = ("calibrate", "spot-check")


Call = Callable[..., "Ran"]


class Ran:
    """What the command left: its exit code, what it printed, and the folder for its records."""

    def __init__(self, code: int, stdout: str, stderr: str, folder: Path) -> None:
        self.code, self.stdout, self.stderr, self.folder = code, stdout, stderr, folder

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    (tmp_path / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    folder = tmp_path / "out"

    def run(command: str, base_url: str, *arguments: str) -> Ran:
        own = {
            "calibrate": ["--out", str(folder), "--max-concurrency", "2", "--max-time", "5"],
            "spot-check": [str(tmp_path / "scenario.yaml"), "--repeats", "1"],
        }
        monkeypatch.setattr(sys, "argv", ["headcount", command, "--base-url", base_url, *own[command], *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return Ran(int(end.value.code or 0), said.out, said.err, folder)

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_is_down(call: Call, command: str) -> None:
    with FakeServer() as server:
        pass
    ran = call(command, server.base_url)
    assert (ran.code, ran.stdout, ran.files) == (2, "", [])
    assert ran.stderr.startswith(f"{server.base_url}: no server answers there (")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_is_not_served(call: Call, command: str) -> None:
    with FakeServer() as server:
        ran = call(command, server.base_url, "--model", "large")
    assert (ran.code, ran.stdout, ran.files, server.bodies) == (2, "", [], [])
    assert ran.stderr == f"--model: 'large' is not served at {server.base_url}; it has: tiny\n"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("models", ["", "{", '{"data": [{"id": "ti', "[]", '{"data": null}'])
def test_models_that_are_empty_or_cut(call: Call, command: str, models: str) -> None:
    with FakeServer(models=models) as server:
        ran = call(command, server.base_url)
    assert (ran.code, ran.stdout, ran.files, server.bodies) == (2, "", [], [])
    said = f"{server.base_url}/v1/models: not the models of an OpenAI-compatible server (status 200)\n"
    assert ran.stderr == said


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("401", "status 401: refused with 401"),
        ("404", "status 404: refused with 404"),
        ("500", "5 requests failed in a row, the last with: status 500: refused with 500"),
        ("garbage", "5 requests failed in a row, the last with: an event of the stream cannot be read"),
        ("close", "5 requests failed in a row, the last with: the server closed the connection"),
    ],
)
def test_a_failure_in_the_middle_keeps_what_came(call: Call, command: str, what: str, words: str) -> None:
    with FakeServer(lambda number: "ok" if number < 14 else what) as server:
        ran = call(command, server.base_url)
    assert len(set(server.names)) < 30  # one that was sent again counts once
    if command == "spot-check":
        assert ran.code == 1
        assert words in ran.stdout
        assert "a real run ended early" in ran.stdout
        return
    assert ran.code == 2  # nobody knows the shape of a model called tiny, so requests alone cannot be fitted
    assert ran.stdout == ""
    assert words in ran.stderr
    assert {"observation.json", "requests-single.json"} <= set(ran.files)
    assert not [name for name in ran.files if "profile" in name or name.startswith(".")]
    observation = json.loads((ran.folder / "observation.json").read_text(encoding="utf-8"))
    assert words in observation["stopped"]
    assert sum(phase["num_finished"] for phase in observation["phases"]) >= 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_is_full_from_the_middle_on(call: Call, command: str) -> None:
    with FakeServer(lambda number: "ok" if number < 14 else "503") as server:
        ran = call(command, server.base_url)
    if command == "spot-check":
        assert ran.code in (0, 1)
        assert "16 requests: status 503: refused with 503" in ran.stdout
        return
    assert ran.code == 2
    observation = json.loads((ran.folder / "observation.json").read_text(encoding="utf-8"))
    assert observation["stopped"] is None
    assert observation["phases"][-1]["errors"] == {
        "status 503: refused with 503": observation["phases"][-1]["num_sent"]
    }
    assert "profile.yaml" not in ran.files


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_hangs(call: Call, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate.http_client, "_SILENCE_S", 0.3)
    with FakeServer(lambda number: "ok" if number < 14 else "hang") as server:
        ran = call(command, server.base_url)
    assert ran.code == (2 if command == "calibrate" else 1)
    assert "5 requests failed in a row, the last with: no answer in time" in ran.stderr + ran.stdout


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_keeps_what_came(call: Call, command: str, number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with FakeServer(lambda number: "ok" if number < 14 else "hang") as server:

        def send() -> None:
            while len(server.bodies) < 15:
                time.sleep(0.01)
            os.kill(os.getpid(), number)

        sender = threading.Thread(target=send)
        sender.start()
        ran = call(command, server.base_url)
        sender.join()
    assert ran.code == 130
    assert signal.getsignal(signal.SIGTERM) == before
    if command == "spot-check":
        assert "interrupted" in ran.stdout
        return
    assert "no profile is written: " in ran.stderr
    assert {"observation.json", "requests-single.json"} <= set(ran.files)
    assert "profile.yaml" not in ran.files
