"""The engine as a SimPy process: one Timeout a busy period, one when idle. The only file that imports simpy.

Requests are never processes and a token is never an event. At every step boundary the engine takes what has happened
since the last one: arrivals and clients that gave up. `run` is one engine by itself; several that share a workload
have a `Clock` and a driver each, and take the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol

import simpy

from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs
from sim.engine.steady_steps import SteadySteps


class Clients(Protocol):
    """Everything outside the engine: whoever sends requests, gives up, and gets tokens."""

    def deliver(self, now_ns: int) -> None:
        """Hands the engine all requests that have arrived by now, then aborts those given up by now."""

    def abort_due(self, now_ns: int) -> None:
        """Aborts requests given up by now: called when a step ends, before its tokens are taken in."""

    def next_event_ns(self) -> int | None:
        """Returns when the next request arrives, if one is known; None: never, unless something finishes."""

    def publish(self, batch: InFlightBatch, outputs: StepOutputs) -> None:
        """Takes the tokens of a completed step to their clients."""


class PatientClients(Protocol):
    """Clients that know when the next of them can do something, and take the steps until then all at once."""

    def next_interruptions_ns(self) -> tuple[int, int | None]:
        """Returns when the next request can arrive while none finishes, and when the next client may give up.

        Neither may be too late; both may be too early. None: nobody gives up.
        """

    def publish_steady(self, steps: SteadySteps) -> None:
        """Does what `publish` does, for many steps that were made ahead."""


class Server(Protocol):
    """A whole server that knows itself when it next has something to do: the engines that are not vLLM's."""

    def advance(self, now_ns: int) -> int | None:
        """Does all that is due by now; returns when the next thing is due, or None when nothing ever will be."""


def run_server(server: Server) -> int:
    """Runs a server until nothing is left to do; returns the virtual time in nanoseconds."""
    env = simpy.Environment(initial_time=0)
    env.process(_server_process(env, server))
    env.run()
    return int(env.now)


def _server_process(env: simpy.Environment, server: Server) -> Generator[simpy.Event, Any, None]:
    while (next_ns := server.advance(int(env.now))) is not None:
        yield env.timeout(next_ns - int(env.now))


def run(engine: EngineCore, clients: Clients, patient: PatientClients | None = None) -> int:
    """Runs an engine until nothing is left to do; returns the virtual time in nanoseconds.

    Args:
        engine: the engine.
        clients: everything outside it.
        patient: the same clients, where they can take many steps at once.
    """
    env = simpy.Environment(initial_time=0)
    env.process(_engine_process(env, engine, clients, patient))
    env.run()
    return int(env.now)


def _engine_process(
    env: simpy.Environment, engine: EngineCore, clients: Clients, patient: PatientClients | None
) -> Generator[simpy.Event, Any, None]:
    # Nothing but this engine moves the clock, so it runs ahead of SimPy's while it is busy: one Timeout a busy period.
    now = int(env.now)
    while True:
        clients.deliver(now)
        steps = None
        if patient is not None and engine.can_decode_ahead():
            steps = engine.decode_ahead(now, *patient.next_interruptions_ns())
        if patient is not None and steps is not None:
            patient.publish_steady(steps)
            now = steps.now_ns
            continue
        if not engine.has_work():
            next_ns = clients.next_event_ns()
            # A client may have acted while the last step executed: the engine looks at it now, never before now.
            yield env.timeout((now if next_ns is None else max(now, next_ns)) - int(env.now))
            if next_ns is None:
                return
            now = int(env.now)
            continue
        batch = engine.dispatch(now)
        if batch is None:
            continue
        now = max(now, batch.end_ns)
        clients.abort_due(now)
        clients.publish(batch, engine.complete(batch))
        if engine.is_stuck(batch):
            next_ns = clients.next_event_ns()
            assert next_ns is not None, f"nothing can ever be scheduled: {engine.scheduler.waiting.peek_request()}"
            now = max(now, next_ns)


class Clock:
    """Virtual time for several engines: whatever is due at a moment is called then, first planned first called."""

    def __init__(self) -> None:
        self._env = simpy.Environment(initial_time=0)

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the start of the run."""
        return int(self._env.now)

    def at(self, when_ns: int, action: Callable[[], None]) -> None:
        """Calls `action` at a time, at once if that is over; the caller makes sure that a stale call does no harm."""
        timeout = self._env.timeout(max(0, when_ns - int(self._env.now)))
        timeout.callbacks.append(lambda _: action())

    def run(self) -> None:
        """Lets time pass until nothing is planned any more."""
        self._env.run()


class EngineDriver:
    """The loop of `_engine_process` for one of several engines, which can be woken and stopped.

    An engine without work costs nothing: whoever hands it a request calls `wake`.

    Args:
        clock: shared by all engines.
        engine: the engine.
        clients: its clients; `next_event_ns` tells only of requests on their way to this engine.
    """

    def __init__(self, clock: Clock, engine: EngineCore, clients: Clients) -> None:
        self.clock = clock
        self.engine = engine
        self.clients = clients
        self.is_idle = True
        self.last_ns = 0  # when it last looked at its clients or took in a batch
        self._is_stopped = False

    def wake(self) -> None:
        """Tells the engine that there may be something to do; does nothing while it is at work."""
        if self.is_idle and not self._is_stopped:
            self.is_idle = False
            self._work()

    def stop(self) -> None:
        """Ends the engine at once: what it was computing is lost."""
        self._is_stopped = True

    def _work(self) -> None:
        """Dispatches until a batch takes time or nothing is left to do."""
        while not self._is_stopped:
            now = self.last_ns = self.clock.now_ns
            self.clients.deliver(now)
            if not self.engine.has_work():
                self._rest()
                return
            batch = self.engine.dispatch(now)
            if batch is None:
                continue
            if batch.end_ns > now:
                self.clock.at(batch.end_ns, partial(self._complete, batch))
                return
            if not self._take_in(batch):
                return

    def _complete(self, batch: InFlightBatch) -> None:
        if not self._is_stopped and self._take_in(batch):
            self._work()

    def _take_in(self, batch: InFlightBatch) -> bool:
        """Publishes a batch whose time is over; returns whether the engine can go on."""
        self.last_ns = self.clock.now_ns
        self.clients.abort_due(self.last_ns)
        self.clients.publish(batch, self.engine.complete(batch))
        if not self.engine.is_stuck(batch):
            return True
        self._rest()
        return False

    def _rest(self) -> None:
        self.is_idle = True
        next_ns = self.clients.next_event_ns()
        if next_ns is not None:
            self.clock.at(next_ns, self.wake)
