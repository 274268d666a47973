"""README.md has a place for everything that is measured."""

from pathlib import Path

import pytest

from tests.benchmarks import record
from tests.benchmarks.measure import Figure, measure


@pytest.mark.parametrize("name", record.PARTS)
def test_every_part_has_a_place_in_the_readme(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = record.README.read_text(encoding="utf-8")
    readme = tmp_path / "README.md"
    readme.write_text(text, encoding="utf-8")
    monkeypatch.setattr(record, "README", readme)
    record.write(name, ["| new |"], "On this machine.")
    written = readme.read_text(encoding="utf-8")
    assert f"<!-- {name} -->\nOn this machine.\n\n| new |\n<!-- end of {name} -->" in written
    assert [line for line in written.splitlines() if line.startswith("#")] == [
        line for line in text.splitlines() if line.startswith("#")
    ]


def test_the_conditions_name_machine_load_and_versions() -> None:
    assert "load average" in record.conditions()
    assert "headcount 0." in record.conditions()


def test_a_figure_counts_what_was_simulated() -> None:
    figure = measure("single", 50)
    assert (figure.num_requests, figure.engine) == (50, "fast")
    assert figure.cpu_s > 0
    assert figure.num_tokens > 50 * 128
    row = record.table([Figure("single", "fast", 1000, 3000, 256_000, 0.5, 200.4, 90.0)])[-1]
    assert row == "| single | fast | 1,000 | 3,000 | 1.5 min | 0.50 | 2,000 | 6,000 | 512,000 | 200 |"
