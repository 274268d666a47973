"""A file that is no scenario is one exact line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sim.scenario.load import load_scenario
from sim.scenario.problems import ScenarioError

from .texts import TRACE, USERS, edited, lines_for


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "s.yaml:1:1: the file is empty; `headcount init` writes a scenario"),
        ("# nothing\n", "s.yaml:1:1: the file is empty; `headcount init` writes a scenario"),
        ("- a\n- b\n", "s.yaml:1:1: a scenario is a mapping of keys; got a list"),
        ("hello\n", "s.yaml:1:1: a scenario is a mapping of keys; got the text 'hello'"),
        ("a: 1\nb:\n\t- 2\n", "s.yaml:3:1: not valid YAML: a tab; indent with spaces"),
        ("a: [1, 2\n", "s.yaml:2:1: not valid YAML: a bracket that is never closed"),
        ("a: 'x\n", "s.yaml:2:1: not valid YAML: a quote that is never closed"),
        (
            "a: b: c\n",
            "s.yaml:1:5: not valid YAML: a colon out of place; check the indentation, the space after the colon, "
            "quotes",
        ),
        (
            "k:\n  - a\n b: 2\n",
            "s.yaml:3:2: not valid YAML: a line that does not line up with those above it; check the indentation",
        ),
        ("a: 1\n---\nb: 2\n", "s.yaml:2:1: not valid YAML: a second document; a scenario file holds one"),
        ("a: *x\n", "s.yaml:1:4: not valid YAML: an alias without an anchor"),
        ("a: &a [*a]\n", "s.yaml:1:4: a.0: an alias inside its own anchor"),
        ("a: !x 1\n", "s.yaml:1:4: a: a YAML tag has no meaning here; got !x"),
        ("a: \x01\n", "s.yaml:1:4: not valid YAML: a control character; got '\\x01'"),
        ("1: x\n", "s.yaml:1:1: a key is text; got 1"),
        ("? [1]\n: x\n", "s.yaml:1:3: a key is text; got a list"),
        ("a: " + "[" * 1500, "s.yaml:1:1: not a scenario: nested too deeply"),
    ],
)
def test_one_line_says_why_a_text_is_no_scenario(text: str, line: str) -> None:
    assert lines_for(text) == [line]


def test_aliases_that_multiply_do_not_take_for_ever() -> None:
    bomb = "a: &a [x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
    )
    lines = lines_for(bomb)
    assert lines
    assert all("unknown key" in line or "missing key" in line for line in lines)


def _says(path: Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    return str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    assert _says(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml: no such file; `headcount init` writes a scenario"


def test_a_folder_is_no_scenario(tmp_path: Path) -> None:
    assert _says(tmp_path) == f"{tmp_path}: a folder, not a scenario file"


def test_text_that_is_not_utf8_is_said_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"name: x\nserver: \xe9\n")
    assert _says(path) == f"{path}:2:9: not UTF-8 text; got byte 0xe9"


@pytest.mark.parametrize("name", ["requests.jsonl", "requests.jsonl.gz"])
def test_an_empty_trace_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"\n") if name.endswith(".gz") else b" \n")
    path = tmp_path / "x.yaml"
    path.write_text(edited(TRACE, "requests.jsonl", name))
    assert _says(path) == f"{path}:5:9: workload.path: the file is empty; got {name!r}"


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("\ufeff" + USERS, encoding="utf-8")
    assert load_scenario(path).name == "team"
