"""The engine as a SimPy process: one Timeout a step, one when idle. The only file that imports simpy.

Requests are never processes and a token is never an event. At every step boundary the engine takes what has happened
since the last one: arrivals and clients that gave up.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import simpy

from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs


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


def run(engine: EngineCore, clients: Clients) -> int:
    """Runs an engine until nothing is left to do; returns the virtual time in nanoseconds."""
    env = simpy.Environment(initial_time=0)
    env.process(_engine_process(env, engine, clients))
    env.run()
    return int(env.now)


def _engine_process(env: simpy.Environment, engine: EngineCore, clients: Clients) -> Generator[simpy.Event, Any, None]:
    while True:
        now = int(env.now)
        clients.deliver(now)
        if not engine.has_work():
            next_ns = clients.next_event_ns()
            if next_ns is None:
                return
            yield env.timeout(next_ns - now)
            continue
        batch = engine.dispatch(now)
        if batch is None:
            continue
        if batch.end_ns > now:
            yield env.timeout(batch.end_ns - now)
        clients.abort_due(int(env.now))
        clients.publish(batch, engine.complete(batch))
        if engine.is_stuck(batch):
            next_ns = clients.next_event_ns()
            assert next_ns is not None, f"nothing can ever be scheduled: {engine.scheduler.waiting.peek_request()}"
            yield env.timeout(max(0, next_ns - int(env.now)))
