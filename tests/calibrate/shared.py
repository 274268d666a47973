"""Recorded data that is not part of the repository: tests that need it are skipped where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_data(name: str) -> Path:
    """Returns a folder of recorded data, or skips the test."""
    root = Path(os.environ.get("HEADCOUNT_SHARED", Path(__file__).parents[3] / "shared"))
    folder = root / "data" / name
    if not folder.is_dir():
        pytest.skip(f"needs the recorded data {name}; set HEADCOUNT_SHARED to its folder")
    return folder
