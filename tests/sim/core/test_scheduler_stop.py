"""Rule 8: when a request ends."""

import pytest

from sim.core.request import RequestStatus
from tests.factories import create_request, create_scheduler, num_free_blocks, step


def outputs_until_finished(scheduler, request):
    scheduler.add_request(request)
    while not request.is_finished:
        step(scheduler)
    return request.num_output_tokens


def test_a_request_stops_at_max_tokens():
    request = create_request(max_tokens=5)
    assert outputs_until_finished(create_scheduler(), request) == 5
    assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED


def test_a_request_stops_where_the_model_ends_its_answer():
    request = create_request(max_tokens=50, eos_tokens=3)
    assert outputs_until_finished(create_scheduler(), request) == 3
    assert request.status == RequestStatus.FINISHED_STOPPED


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_stops_at_max_model_len(is_async):
    request = create_request(num_tokens=10, max_tokens=50)
    assert outputs_until_finished(create_scheduler(max_model_len=16, async_scheduling=is_async), request) == 6


def test_a_finished_request_frees_its_blocks_at_once():
    scheduler = create_scheduler(num_gpu_blocks=600)
    outputs_until_finished(scheduler, create_request(num_tokens=100, max_tokens=1))
    assert num_free_blocks(scheduler) == 599
