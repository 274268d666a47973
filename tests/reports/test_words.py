"""Both languages say the same things, each with the numbers of its locale."""

import math
import re
from pathlib import Path

import pytest

from reports.content import Cell, Column
from reports.words import LANGUAGES, Words, load_texts, placeholders
from sim.errors import UserError

REPORTS = Path(__file__).parents[2] / "reports"
EN, PT = Words.of("en"), Words.of("pt-BR")


def test_languages_have_the_same_keys_and_fill_in_the_same_values() -> None:
    english, portuguese = load_texts("en"), load_texts("pt-BR")
    assert list(english) == list(portuguese)  # in the same order, so that they can be read side by side
    different = [key for key in english if placeholders(english[key]) != placeholders(portuguese[key])]
    assert different == []


def test_no_text_is_left_untranslated() -> None:
    english, portuguese = load_texts("en"), load_texts("pt-BR")
    same = [key for key in english if english[key] == portuguese[key] and len(english[key].split()) > 3]
    assert [key for key in same if re.search(r"[a-z]{4}", re.sub(r"\{\w+\}|max_\w+|gpu_\w+", "", english[key]))] == []


def test_every_text_that_the_code_names_exists() -> None:
    known = load_texts("en")
    named = set()
    for path in [*REPORTS.rglob("*.py"), *REPORTS.rglob("*.j2")]:
        named |= set(re.findall(r'words\(\s*"([a-z_0-9.]+)"', path.read_text(encoding="utf-8")))
    assert len(named) > 150
    assert sorted(named - set(known)) == []


@pytest.mark.parametrize(
    ("value", "english", "portuguese"),
    [
        (0, "0", "0"),
        (85, "85", "85"),
        (1234567, "1,234,567", "1.234.567"),
        (0.7478, "0.748", "0,748"),
        (12.345, "12.3", "12,3"),
        (1234.5, "1,234", "1.234"),
        (0.0000123, "0.0000123", "0,0000123"),
        (-2.5, "−2.5", "−2,5"),
        (None, "–", "–"),
        (math.inf, "∞", "∞"),
    ],
)
def test_numbers_have_three_digits_and_the_marks_of_the_locale(
    value: float | None, english: str, portuguese: str
) -> None:
    assert (EN.number(value), PT.number(value)) == (english, portuguese)


@pytest.mark.parametrize(
    ("seconds", "english", "portuguese"),
    [
        (0.0275, "27.5 ms", "27,5 ms"),
        (1.965, "1.97 s", "1,97 s"),
        (1800, "30 min", "30 min"),
        (10800, "3 h", "3 h"),
        (None, "–", "–"),
    ],
)
def test_durations_take_the_unit_that_suits_them(seconds: float | None, english: str, portuguese: str) -> None:
    spaced = [text.replace("\u00a0", " ") for text in (EN.duration(seconds), PT.duration(seconds))]
    assert spaced == [english, portuguese]


def test_shares_and_loads_follow_the_locale() -> None:
    assert (EN.share(0.123), PT.share(0.123)) == ("12.3\u00a0%", "12,3%")
    assert (EN.signed_share(0.5), PT.signed_share(-0.0123)) == ("+50\u00a0%", "−1,2%")
    assert (EN.load(1, "users"), PT.load(2, "users")) == ("1\u00a0user", "2\u00a0usuários")


def test_a_cell_may_differ_from_its_column() -> None:
    column = Column("x", "X", "share")
    assert EN.cell(0.5, column) == "50\u00a0%"
    assert EN.cell(Cell(12345, "count"), column) == "12,345"
    assert EN.cell(Cell("auto", "flag"), column) == "auto"
    assert PT.cell(True, column) == "sim"


@pytest.mark.parametrize("tag", ["EN", "pt-br", "pt"])
def test_tags_are_known_however_they_are_written(tag: str) -> None:
    assert Words.of(tag).lang in LANGUAGES


def test_an_unknown_language_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="--lang: unknown language 'fr'; known: en, pt-BR"):
        Words.of("fr")
