"""Operator tables boiled down to a profile price steps like the tables themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.fit import FitOptions, fit, fit_operator_tables
from calibrate.fit_tables import TableSource, compute_table, fit_tables, made_steps
from calibrate.replay_server import ServerChoice, describe_server
from sim.engine.fitted import FittedModel
from sim.engine.operator_table import Collective
from sim.engine.step_time import Batch
from sim.errors import UserError
from tests.sim.engine.test_operator_table import LLAMA, write_tables


def server() -> ServerChoice:
    flags = {
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "max_model_len": 8192,
        "num_gpu_blocks_override": 3000,
    }
    return describe_server({"model": "meta-llama/Llama-3.1-8B", "gpu": "rtx-4090", "version": "0.19.0", "flags": flags})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TableSource:
    return TableSource(write_tables(tmp_path_factory.mktemp("tables") / "t"), LLAMA)


def test_the_few_terms_price_steps_as_the_tables_do(source: TableSource) -> None:
    found = fit_tables(source)
    assert np.median(np.abs(found.held_out["decodes only, 8-31"])) < 1
    assert np.median(np.abs(found.held_out["prompts and decodes"])) < 10
    few, full = FittedModel(found.form.coefficients(found.values)), source.step_model()
    batch = Batch.of([1000] * 20)
    assert few.step_time(batch) == pytest.approx(full.step_time(batch), rel=0.02)


def test_what_depends_on_tokens_alone_is_taken_over(source: TableSource) -> None:
    table = compute_table(source.step_model(), 2048)
    counts = [count for count, _ in table]
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, 2048)
    assert dict(table)[512] == pytest.approx((source.step_model().tokens_ns(512) + 55_000) / 1e3, rel=1e-4)


def test_made_steps_stay_within_the_server(source: TableSource) -> None:
    steps = made_steps(source, seed=1)
    assert max(batch.num_tokens for batch in steps) <= 2048 + 256
    assert {bool(batch.num_decodes) for batch in steps if batch.chunks} == {True, False}
    assert made_steps(source, seed=1)[:5] == steps[:5]


def test_a_profile_from_tables_is_a_prior_until_a_run_was_compared_with(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "t")
    plain = fit([folder], server(), FitOptions("made", "here")).profile
    assert plain.calibrated == "prior"
    assert plain.valid_up_to.num_tokens is not None
    linked = fit_operator_tables(
        folder, server(), FitOptions("made", "here"), (Collective(64, ((1, 1e5), (2048, 1e6))),)
    )
    one, two = (each.step_time_model().step_time(Batch.of([100] * 8)) for each in (plain, linked.profile))
    assert two - one == pytest.approx(64 * 1.03e5, rel=0.05)


def test_a_folder_is_fitted_alone_and_must_hold_tables(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "t")
    with pytest.raises(UserError, match="fit it alone"):
        fit([folder, folder], server(), FitOptions("made", "here"))
    with pytest.raises(UserError, match=r"no dense\.csv"):
        fit([tmp_path], server(), FitOptions("made", "here"))
