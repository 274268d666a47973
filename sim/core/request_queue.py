"""The waiting queue: first come, first served, or by priority."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from sim.core.config import SchedulingPolicy
from sim.core.request import Request


class FCFSRequestQueue:
    """Requests in order of arrival; a preempted one goes to the front.

    Attributes:
        requests: to be looked at only.
    """

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    def add_request(self, request: Request) -> None:
        """Adds a new request at the end."""
        self.requests.append(request)

    def prepend_request(self, request: Request) -> None:
        """Puts a preempted request back, at the front."""
        self.requests.appendleft(request)

    def peek_request(self) -> Request:
        """Returns the request to be admitted next."""
        return self.requests[0]

    def pop_request(self) -> Request:
        """Takes the request to be admitted next."""
        return self.requests.popleft()

    def remove_request(self, request: Request) -> None:
        """Takes out a request wherever it stands."""
        self.requests.remove(request)


class PriorityRequestQueue:
    """Requests by (priority, arrival time, request id), the smallest first; there is no front to be put back to.

    Attributes:
        requests: a heap; to be looked at only.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[int, int, int, Request]] = []

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter([entry[3] for entry in sorted(self.requests)])

    def add_request(self, request: Request) -> None:
        """Adds a request by its priority."""
        heapq.heappush(self.requests, (request.priority, request.arrival_time, request.request_id, request))

    def prepend_request(self, request: Request) -> None:
        """Puts a preempted request back, by its priority."""
        self.add_request(request)

    def peek_request(self) -> Request:
        """Returns the request to be admitted next."""
        return self.requests[0][3]

    def pop_request(self) -> Request:
        """Takes the request to be admitted next."""
        return heapq.heappop(self.requests)[3]

    def remove_request(self, request: Request) -> None:
        """Takes out a request wherever it stands."""
        self.requests = [entry for entry in self.requests if entry[3] is not request]
        heapq.heapify(self.requests)


RequestQueue = FCFSRequestQueue | PriorityRequestQueue


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    """Returns an empty waiting queue for the policy."""
    return PriorityRequestQueue() if policy == "priority" else FCFSRequestQueue()
