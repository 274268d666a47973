"""Requests: when two blocks hold the same tokens, their hashes are equal, and only then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.core.request import Request, RequestStatus
from tests.factories import create_request

SEGMENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), min_size=1, max_size=5)


def tokens_of(prompt: list[tuple[int, int]], output_stream: int, num_outputs: int) -> list[tuple[int, int]]:
    """Spells out the tokens: (stream, position in it)."""
    return [(s, i) for s, length in (*prompt, (output_stream, num_outputs)) for i in range(length)]


@given(SEGMENTS, SEGMENTS, st.integers(10, 11), st.integers(10, 11), st.integers(1, 5))
def test_block_hashes_are_equal_exactly_when_all_tokens_up_to_the_block_are(a, b, out_a, out_b, block_size):
    num_outputs = 2 * block_size
    tokens_a, tokens_b = tokens_of(a, out_a, num_outputs), tokens_of(b, out_b, num_outputs)
    num_blocks = min(len(tokens_a), len(tokens_b)) // block_size
    hashes_a = Request(0, tuple(a), 99, 0, out_a).hash_blocks(num_blocks, block_size)
    hashes_b = Request(1, tuple(b), 99, 0, out_b).hash_blocks(num_blocks, block_size)
    for i in range(num_blocks):
        end = (i + 1) * block_size
        assert (hashes_a[i] == hashes_b[i]) == (tokens_a[:end] == tokens_b[:end])


@given(SEGMENTS, st.integers(1, 4))
def test_hashes_asked_for_step_by_step_are_those_asked_for_at_once(prompt, block_size):
    num_blocks = sum(length for _, length in prompt) // block_size + 3
    at_once = Request(0, tuple(prompt), 99, 0, 9).hash_blocks(num_blocks, block_size)
    request = Request(0, tuple(prompt), 99, 0, 9)
    for i in range(1, num_blocks + 1):
        request.hash_blocks(i, block_size)
    assert request.block_hashes == at_once


def test_a_follow_up_begins_with_the_blocks_of_the_prompt_and_the_answer_before_it():
    first = create_request(0, prompt=[(0, 10)])
    follow_up = create_request(1, prompt=[(0, 10), (first.output_stream, 7), (5, 20)])
    assert first.hash_blocks(4, 4) == follow_up.hash_blocks(4, 4)[:4]


def test_streams_are_numbered_from_0():
    with pytest.raises(AssertionError, match="numbered from 0"):
        Request(0, ((-1, 5),), 1, 0, 3)
    with pytest.raises(AssertionError, match="numbered from 0"):
        Request(0, ((1, 5),), 1, 0, -3)


def test_a_request_ends_before_max_tokens_where_the_model_does():
    assert create_request(max_tokens=8).eos_tokens == 8
    assert create_request(max_tokens=8, eos_tokens=3).eos_tokens == 3
    assert create_request(max_tokens=8, eos_tokens=30).eos_tokens == 8


def test_a_request_is_finished_in_exactly_the_finished_states():
    request = create_request()
    for status in RequestStatus:
        request.status = status
        assert request.is_finished == status.name.startswith("FINISHED")


def test_a_request_tells_its_state_in_an_error_message():
    request = create_request(7, 30, max_tokens=5)
    request.append_output_token()
    assert repr(request) == "Request(7, WAITING, prompt=30, outputs=1/5, computed=0+0)"
