"""A library that prices steps is boiled down to a profile that prices them alike, and is marked a prior."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from calibrate.aiconfigurator import export, priced_steps
from calibrate.fit import FitOptions
from calibrate.replay_server import ServerChoice, describe_server
from sim.cli.app import app
from sim.engine.profile import load_profile
from sim.engine.step_time import Batch
from sim.errors import UserError


class Handle:
    """Stands for the library's `EngineHandle`: 5 ms a step or 30 µs a token, 40 ns a cached token, 2 ns a pair."""

    @staticmethod
    def compile(model: str, system: str, backend: str, tp_size: int) -> Handle:
        assert (system, backend, tp_size) == ("h100_sxm", "vllm", 1)
        if model == "nobody/knows":
            raise ValueError("no such model\nmore lines")
        return Handle()

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        return self.mixed_step_breakdown(0, gen_tokens, isl, osl)[0]

    def mixed_step_latency(self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int) -> float:
        return self.mixed_step_breakdown(ctx_tokens, gen_tokens, isl, osl)[0]

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int
    ) -> tuple[float, float, float, float]:
        tokens = max(5.0, 0.03 * (ctx_tokens + gen_tokens))
        prompts = 2e-6 * ctx_tokens * (isl + 1) / 2
        decodes = 40e-6 * gen_tokens * (isl + osl // 2)
        return tokens + prompts + decodes + 0.5, tokens, prompts, decodes


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    package, sdk = ModuleType("aiconfigurator_core"), ModuleType("aiconfigurator_core.sdk")
    sdk.EngineHandle = Handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", package)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk", sdk)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "9.9")


def server(model: str = "Qwen/Qwen3-14B", gpu: str = "h100-80gb") -> ServerChoice:
    return describe_server({"model": model, "gpu": gpu, "version": "0.24.0", "flags": {"max_model_len": 8192}})


@pytest.mark.usefixtures("library")
def test_the_profile_prices_steps_as_the_library_does() -> None:
    profile = export(server(), FitOptions("made", "set by export")).profile
    assert profile.calibrated == "prior"
    assert "aiconfigurator-core 9.9" in profile.source
    model = profile.step_time_model()
    for decodes, prompts in ((1, 0), (64, 0), (200, 0), (0, 3), (100, 1)):
        batch = Batch.of([1032] * decodes, [(1000, 0)] * prompts)
        expected = Handle().mixed_step_latency(1000 * prompts, decodes, 1000, 64)
        assert model.step_time(batch) == pytest.approx(1e6 * expected, rel=0.03)


def test_made_steps_keep_to_the_limits_and_are_of_every_kind() -> None:
    batches = [batch for batch, _ in priced_steps(Handle(), 100, 2048)]
    assert max(batch.num_tokens for batch in batches) <= 2048
    assert max(batch.num_decodes for batch in batches) <= 100
    kinds = {(batch.num_decodes > 0, batch.num_prefill_tokens > 0) for batch in batches}
    assert kinds == {(True, False), (False, True), (True, True)}


@pytest.mark.usefixtures("library")
def test_what_the_library_does_not_know_is_said_in_one_line() -> None:
    with pytest.raises(UserError, match="no tables of this GPU"):
        export(server(gpu="rtx-4090"), FitOptions("made", ""))


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with pytest.raises(UserError, match="not installed: pip install"):
        export(server(), FitOptions("made", ""))


@pytest.mark.usefixtures("library")
def test_the_command_writes_a_prior(tmp_path: Path) -> None:
    out = tmp_path / "prior.yaml"
    given = ["--model", "Qwen/Qwen3-8B", "--gpu", "h100-80gb", "--out", str(out)]
    result = CliRunner().invoke(app, ["fit", "--aiconfigurator", *given])
    assert result.exit_code == 0
    assert load_profile(out).calibrated == "prior"
    assert "[[Terms]]" in result.stdout
    assert "nothing to fit to" in str(CliRunner().invoke(app, ["fit", *given]).exception)
    refused = CliRunner().invoke(app, ["fit", "data.csv", "--aiconfigurator", *given])
    assert isinstance(refused.exception, UserError)
    assert "one or the other" in str(refused.exception)
