"""The waiting queue: who is admitted next."""

from sim.core.request_queue import create_request_queue
from tests.factories import create_request, create_requests, ids


def test_first_come_first_served_and_a_preempted_request_before_all():
    queue = create_request_queue("fcfs")
    first, second, preempted = create_requests(3)
    queue.add_request(first)
    queue.add_request(second)
    queue.prepend_request(preempted)
    assert ids(queue) == [2, 0, 1]
    assert queue.peek_request() is preempted
    assert [queue.pop_request() for _ in range(3)] == [preempted, first, second]


def test_by_priority_there_is_no_front_to_be_put_back_to():
    queue = create_request_queue("priority")
    urgent, early, late = (
        create_request(0, priority=0, arrival_time=9),
        create_request(1, priority=1, arrival_time=1),
        create_request(2, priority=1, arrival_time=2),
    )
    queue.add_request(early)
    queue.add_request(urgent)
    queue.prepend_request(late)
    assert ids(queue) == [0, 1, 2]
    assert queue.peek_request() is urgent
    assert queue.pop_request() is urgent
    assert len(queue) == 2


def test_a_request_can_leave_from_anywhere():
    for policy in ("fcfs", "priority"):
        queue = create_request_queue(policy)
        requests = create_requests(5)
        for request in requests:
            queue.add_request(request)
        queue.remove_request(requests[2])
        assert ids(queue) == [0, 1, 3, 4]
        assert [queue.pop_request().request_id for _ in range(4)] == [0, 1, 3, 4]
