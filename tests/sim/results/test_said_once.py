"""What many runs warn of is said once, at its worst."""

import doctest

from sim.results import said_once


def test_the_example_holds() -> None:
    assert doctest.testmod(said_once).attempted == 1
    assert doctest.testmod(said_once).failed == 0


def test_only_the_number_of_a_range_may_differ() -> None:
    here, there = (f"profile {name}: steps of up to 9 tokens were priced" for name in ("a", "b"))
    requests = "profile a: steps of up to 99 requests were priced"
    assert said_once.said_once([here, there, requests, here]) == [here, there, requests]
