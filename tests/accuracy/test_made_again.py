"""The profiles of tables are what `calibrate.published` makes of the published tables, to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.published import PUBLISHED
from sim.engine.profile import load_profile, save_profile
from tests.accuracy.shared import measurements

pytestmark = pytest.mark.accuracy


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("llama-3.1-8b-rtx-4090", "llmservingsim"),
        ("llama-3.1-8b-rtx-pro-6000", "llmservingsim"),
        ("qwen3-32b-rtx-pro-6000-tp2", "llmservingsim"),
        ("qwen3-30b-a3b-rtx-pro-6000-dp2", "llmservingsim"),
        ("qwen2.5-3b-a10g", "a10g-steps"),
    ],
)
def test_made_again_it_is_the_same(name: str, source: str, tmp_path: Path) -> None:
    made = PUBLISHED[name](measurements(source).parent, 1, lambda _: None).profile
    path = tmp_path / f"{name}.yaml"
    save_profile(made, path)
    assert load_profile(path) == load_profile(name)
