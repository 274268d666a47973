"""The committed sample is what the code makes today; `python -m tests.reports.sample` writes it anew."""

import json

import pytest

from reports.what_if import simulate_what_if
from sim.simulate import simulate
from tests.reports import sample


@pytest.mark.parametrize("suffix", ["html", "md", "json"])
def test_the_sample_is_up_to_date(suffix: str) -> None:
    committed = (sample.FOLDER / f"small-office.{suffix}").read_text(encoding="utf-8")
    assert sample.rendered()[suffix] == committed, "python -m tests.reports.sample writes the sample anew"


def test_the_sample_is_small() -> None:
    assert all(path.stat().st_size < 400_000 for path in sample.FOLDER.iterdir())


@pytest.mark.slow
def test_the_samples_changes_are_up_to_date() -> None:
    committed = json.loads(sample.WHAT_IF.read_text(encoding="utf-8"))
    assert simulate_what_if(sample.source(with_what_if=False), simulate) == committed
