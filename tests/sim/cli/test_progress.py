"""The line that says how far a command is: silent for two seconds, then alive though there is no news."""

from __future__ import annotations

import re
import time

import pytest

from sim.cli.progress import ProgressLine


def test_a_command_of_less_than_two_seconds_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine()
    with line.alive(0.001):
        line.tell("1 of 2 done")
        time.sleep(0.02)
    assert capsys.readouterr().err == ""


def test_without_news_it_says_that_it_is_alive_and_keeps_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("replaying x.csv", began=time.monotonic() - 5).alive(0.001):
        time.sleep(0.1)
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"replaying x\.csv, \d s\n", said.err)  # once: the next comes after half a minute


def test_news_are_shown_with_the_time_that_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLine(began=time.monotonic() - 61).tell("3 of 4 done")
    assert capsys.readouterr().err == "3 of 4 done, 61 s\n"
