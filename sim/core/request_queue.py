"""The waiting queue: first come, first served, or by priority."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from sim.core.config import SchedulingPolicy
from sim.core.request import Request


class FCFSRequestQueue:
    """Requests in order of arrival; a preempted one goes to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def add_request(self, request: Request) -> None:
        """Adds a new request at the end."""
        self._queue.append(request)

    def prepend_request(self, request: Request) -> None:
        """Puts a preempted request back, at the front."""
        self._queue.appendleft(request)

    def peek_request(self) -> Request:
        """Returns the request to be admitted next."""
        return self._queue[0]

    def pop_request(self) -> Request:
        """Takes the request to be admitted next."""
        return self._queue.popleft()

    def remove_request(self, request: Request) -> None:
        """Takes out a request wherever it stands."""
        self._queue.remove(request)


class PriorityRequestQueue:
    """Requests by (priority, arrival time, request id), the smallest first; there is no front to be put back to."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter([entry[3] for entry in sorted(self._heap)])

    def add_request(self, request: Request) -> None:
        """Adds a request by its priority."""
        heapq.heappush(self._heap, (request.priority, request.arrival_time, request.request_id, request))

    def prepend_request(self, request: Request) -> None:
        """Puts a preempted request back, by its priority."""
        self.add_request(request)

    def peek_request(self) -> Request:
        """Returns the request to be admitted next."""
        return self._heap[0][3]

    def pop_request(self) -> Request:
        """Takes the request to be admitted next."""
        return heapq.heappop(self._heap)[3]

    def remove_request(self, request: Request) -> None:
        """Takes out a request wherever it stands."""
        self._heap = [entry for entry in self._heap if entry[3] is not request]
        heapq.heapify(self._heap)


RequestQueue = FCFSRequestQueue | PriorityRequestQueue


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    """Returns an empty waiting queue for the policy."""
    return PriorityRequestQueue() if policy == "priority" else FCFSRequestQueue()
