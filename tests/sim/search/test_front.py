"""The front is what nothing beats, and everything else is beaten by something on it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.search.front import dominates, pareto_front
from sim.search.promise import Known, promises
from sim.search.space import parse_space
from tests.sim.search.made import scenario

points = st.lists(st.tuples(*[st.integers(0, 5).map(float)] * 3), min_size=1, max_size=30)


@given(points)
def test_the_front_is_what_nothing_beats(values: list[tuple[float, ...]]) -> None:
    front = pareto_front(list(enumerate(values)))
    for number, value in enumerate(values):
        beaten = any(dominates(other, value) for other in values)
        assert (number in front) != beaten
        assert number in front or any(dominates(values[each], value) for each in front)


@given(points)
def test_no_point_beats_itself_and_of_two_at_most_one_beats_the_other(values: list[tuple[float, ...]]) -> None:
    for one in values:
        assert not dominates(one, one)
        assert not any(dominates(one, other) and dominates(other, one) for other in values)


def test_what_lies_beyond_the_best_that_is_known_promises_most() -> None:
    space = parse_space(["max_num_seqs=1:256:log", "enable_prefix_caching=true,false"], scenario())
    known = [Known((place, 0), (2.0**-place,), feasible=True) for place in (0, 2, 4, 6)]
    proposals = [(1, 0), (3, 0), (5, 0), (7, 0)]
    ranked = promises(space, known, [], proposals, explore=False)
    assert list(np.argsort(ranked)) == [0, 1, 2, 3]


def test_a_neighbour_of_what_breaks_a_constraint_comes_last() -> None:
    space = parse_space(["max_num_seqs=1:256:log"], scenario())
    known = [Known((0,), (5.0,), feasible=True), Known((8,), (1.0,), feasible=False)]
    ranked = promises(space, known, [], [(1,), (7,)], explore=False)
    assert ranked[0] > ranked[1]


def test_measures_without_data_count_as_the_worst_that_is_known() -> None:
    space = parse_space(["max_num_seqs=1:256:log"], scenario())
    known = [
        Known((0,), (float("inf"),), feasible=False),
        Known((4,), (2.0,), feasible=True),
        Known((8,), (1.0,), True),
    ]
    assert np.isfinite(promises(space, known, [(2,)], [(1,), (7,)], explore=True)).all()
