"""A log of requests is a list of records: packed or not, it says the same."""

import gc
import tracemalloc
from array import array
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records import REQUEST_FIELDS, Outcome, RequestLog, RequestRecord
from tests.sim.results.toys import finished, request

CHUNK = 4096


def some_records(number: int, unfinished: frozenset[int] = frozenset()) -> list[RequestRecord]:
    """Records that all differ; those named are still in the server."""
    return [
        request(index, 5 * index)
        if index in unfinished
        else finished(index, 5 * index, 7 + index, tokens=1 + index % 9)
        for index in range(number)
    ]


@given(st.integers(0, 3 * CHUNK), st.frozensets(st.integers(0, 3 * CHUNK), max_size=3), st.data())
def test_a_log_is_a_list(number: int, unfinished: frozenset[int], data: st.DataObject) -> None:
    records = some_records(number, unfinished)
    log = RequestLog(records)
    assert len(log) == number
    assert list(log) == records
    assert log == records
    start, stop = data.draw(st.integers(0, number)), data.draw(st.integers(0, number + 5))
    assert log[start:stop] == records[start:stop]
    for name in REQUEST_FIELDS:
        assert log.column(name, start, stop).tolist() == [getattr(record, name) for record in records[start:stop]]
    if number:
        index = data.draw(st.integers(-number, number - 1))
        assert log[index] == records[index]
        assert isinstance(log[index].outcome, Outcome)


@pytest.mark.parametrize("number", [0, 1, CHUNK, 2 * CHUNK + 1])
def test_a_log_comes_back_from_its_columns(number: int) -> None:
    log = RequestLog(some_records(number))
    assert RequestLog.of_columns([log.column(name) for name in REQUEST_FIELDS]) == log


def test_logs_that_differ_are_not_equal() -> None:
    log = RequestLog(some_records(2 * CHUNK))
    last = replace(log[-1], finish_ns=log[-1].finish_ns + 1)
    assert log != RequestLog([*log[:-1], last])
    assert log != log[:-1]
    assert log != 3


def test_no_request_lies_beyond_the_ends() -> None:
    log = RequestLog(some_records(3))
    for index in (3, -4):
        with pytest.raises(IndexError, match="of 3"):
            log[index]


def test_what_happens_to_a_request_later_is_in_the_log() -> None:
    log, slow = RequestLog(), request(0, 0)
    log.append(slow)
    log += some_records(3 * CHUNK)
    slow.first_token_ns, slow.finish_ns, slow.outcome = 1, 2, Outcome.TIMED_OUT
    assert astuple(log[0]) == astuple(slow)
    log += some_records(2 * CHUNK)
    assert astuple(log[0]) == astuple(slow)
    assert log.column("finish_ns", 0, 1) == array("q", [2])


def test_requests_that_have_ended_take_the_room_of_their_numbers() -> None:
    gc.collect()
    tracemalloc.start()
    log = RequestLog(finished(index, 10**9 + index, 10**9, decode_ns=10**9 + index) for index in range(5 * CHUNK))
    in_use, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    columns = 8 * len(REQUEST_FIELDS)
    assert in_use < 4 * CHUNK * (columns + 8) + CHUNK * 700  # the last chunk is as it came
    assert len(log) == 5 * CHUNK
