"""What happens to replicas while they serve: they fail and restart, are updated one by one, follow the load."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from sim.engine.process import Clock
from sim.fleet.replica import Replica, State
from sim.scenario.fleet import Autoscaling, Failure, ModelSwitch

_TOLERANCE = 0.1  # HorizontalPodAutoscaler changes nothing within 10 % of the target


class Fleet(Protocol):
    """What the operations act on."""

    @property
    def clock(self) -> Clock:
        """Of all replicas."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """All that there have ever been, by number."""

    def add(self) -> Replica:
        """Returns a new replica, not started yet."""

    def is_active(self) -> bool:
        """Whether a request is under way or will be sent: afterwards nothing needs to happen any more."""


def plan_failures(fleet: Fleet, failures: Sequence[Failure]) -> None:
    """Lets replicas fail, and restart where they do."""
    for failure in failures:
        fleet.clock.at(_ns(failure.after), _fail(fleet, failure))


def _fail(fleet: Fleet, failure: Failure) -> Callable[[], None]:
    def fail() -> None:
        if failure.replica >= len(fleet.replicas):  # an autoscaler has not come that far
            return
        replica = fleet.replicas[failure.replica]
        if not fleet.is_active() or replica.state is State.STOPPED:
            return
        replica.stop("fail", _ns(failure.noticed_after))
        if failure.restart is not None:
            replica.start(_ns(failure.restart))

    return fail


def plan_switch(fleet: Fleet, switch: ModelSwitch) -> None:
    """Updates the replicas one by one: as Kubernetes' rolling update with maxUnavailable 1 and maxSurge 0."""

    def update(number: int) -> None:
        if number >= len(fleet.replicas) or not fleet.is_active():
            return
        replica = fleet.replicas[number]
        if replica.state is not State.READY:
            update(number + 1)
            return

        def reload() -> None:
            replica.start(_ns(switch.load_time))
            fleet.clock.at(fleet.clock.now_ns + _ns(switch.load_time), lambda: update(number + 1))

        replica.drain(reload, _ns(switch.drain))

    fleet.clock.at(_ns(switch.after), lambda: update(0))


class Autoscaler:
    """Starts and stops replicas by a metric, with the algorithm of Kubernetes' HorizontalPodAutoscaler.

    desired = ceil(replicas x metric / target), unless the ratio is within 10 % of 1; replicas on their way up count,
    with a metric of 0 when it would scale up. More are started at once; fewer only when the largest number wished for
    in the last `scale_down_after` is smaller, and then the newest are drained. Source: kubernetes.io, "Horizontal Pod
    Autoscaling", algorithm details; the production stack autoscales with it by `vllm:num_requests_waiting`.

    Args:
        fleet: what it scales.
        rule: metric, target, limits and times.
    """

    def __init__(self, fleet: Fleet, rule: Autoscaling) -> None:
        self._fleet = fleet
        self._rule = rule
        self._wishes: deque[tuple[int, int]] = deque()  # (time, replicas wished for)

    def plan(self) -> None:
        """Looks for the first time."""
        self._fleet.clock.at(_ns(self._rule.every), self._look)

    def _look(self) -> None:
        fleet, rule = self._fleet, self._rule
        if not fleet.is_active():
            return
        now_ns = fleet.clock.now_ns
        ready = [replica for replica in fleet.replicas if replica.state is State.READY]
        coming = [replica for replica in fleet.replicas if replica.state is State.STARTING]
        wished = min(rule.max, max(rule.min, self._wished(ready, len(coming))))
        self._wishes.append((now_ns, wished))
        while self._wishes[0][0] < now_ns - _ns(rule.scale_down_after):
            self._wishes.popleft()
        present = len(ready) + len(coming)
        if wished > present:
            for _ in range(wished - present):
                self._startable().start(_ns(rule.start_up))
        elif (settled := max(wish for _, wish in self._wishes)) < present and now_ns >= _ns(rule.scale_down_after):
            for replica in sorted(ready, key=lambda each: -each.number)[: present - settled]:
                replica.drain(lambda: None)
        fleet.clock.at(now_ns + _ns(rule.every), self._look)

    def _wished(self, ready: Sequence[Replica], num_coming: int) -> int:
        """Returns the number of replicas that would bring the metric to its target."""
        present = len(ready) + num_coming
        if not ready:
            return present
        total = sum(self._metric(replica) for replica in ready)
        ratio = total / len(ready) / self._rule.target
        if ratio > 1:
            ratio = total / present / self._rule.target
            if ratio <= 1:
                return present
        if abs(ratio - 1) <= _TOLERANCE:
            return present
        return math.ceil(ratio * present - 1e-9)

    def _metric(self, replica: Replica) -> float:
        match self._rule.metric:
            case "waiting":
                return replica.num_waiting
            case "requests":
                return replica.num_requests
            case "kv":
                return replica.kv_use

    def _startable(self) -> Replica:
        """Returns a stopped replica, or a new one."""
        stopped = (replica for replica in self._fleet.replicas if replica.state is State.STOPPED)
        return next(stopped, None) or self._fleet.add()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
