"""The profiles of tables are what `calibrate.published` makes of the published tables.

To three digits: the covariance is an inverse, whose fourth digit may differ from one kind of processor to another.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrate.published import PUBLISHED
from sim.engine.profile import PROFILES_DIR, save_profile
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
    (text, numbers), (shipped_text, shipped_numbers) = (
        _parts(each.read_text(encoding="utf-8")) for each in (path, PROFILES_DIR / f"{name}.yaml")
    )
    assert text == shipped_text
    assert numbers == pytest.approx(shipped_numbers, rel=1e-3)


def _parts(text: str) -> tuple[str, list[float]]:
    """Returns a profile's words, and its numbers in their order."""
    number = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.-])")
    return number.sub("#", text), [float(found) for found in number.findall(text)]
