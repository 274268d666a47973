"""One replica: an engine and its API server, and the life they lead: starting, ready, draining, stopped."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from sim.api_server import ApiServer
from sim.engine.process import Clock
from sim.fleet.router import Router
from sim.records import FleetLog, Outcome
from sim.workload.client import ClientRequest


class Driver(Protocol):
    """What lets an engine work: `EngineDriver`, or a rank of a lockstep group."""

    @property
    def is_idle(self) -> bool:
        """Whether it has to be woken."""

    @property
    def last_ns(self) -> int:
        """When it last did anything."""

    def wake(self) -> None:
        """Lets it look at what has come."""

    def stop(self) -> None:
        """Ends it at once."""


MakeServer = Callable[[int, "Replica"], tuple[ApiServer, Driver]]
"""Makes a fresh server for a replica of this number, and what drives it; the replica is its workload."""


class State(Enum):
    """Where a replica is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # gets nothing new
    STOPPED = "stopped"


class Replica:
    """To its API server the workload, to the router an endpoint.

    Args:
        number: counts from 0.
        router: sends requests, and is told how each ended.
        clock: shared by all replicas.
        make_server: makes the server anew at each start: with an empty cache.
        log: is told of what happens.
    """

    def __init__(self, number: int, router: Router, clock: Clock, make_server: MakeServer, log: FleetLog) -> None:
        self.number = number
        self.state = State.STOPPED
        self.num_requests = 0
        self.is_listed = False  # whether the router sends requests
        self.last_ns = 0  # when it last worked
        self._router = router
        self._clock = clock
        self._make_server = make_server
        self._log = log
        self._inbox: list[ClientRequest] = []
        self._server: ApiServer | None = None
        self._driver: Driver | None = None
        self._on_drained: Callable[[], None] | None = None
        self._outages = 0
        self._life = 0  # counts states, so that a plan made in an older one comes to nothing

    @property
    def class_names(self) -> tuple[str, ...]:
        """See `Workload`."""
        return self._router.workload.class_names

    @property
    def warnings(self) -> tuple[str, ...]:
        """See `Workload`."""
        return ()

    @property
    def arrivals_end_ns(self) -> int:
        """See `Workload`."""
        return self._router.workload.arrivals_end_ns

    @property
    def num_running(self) -> int:
        """Requests being served."""
        return 0 if self._server is None else len(self._server.engine.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the engine's queue."""
        return 0 if self._server is None else len(self._server.engine.scheduler.waiting)

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks held by requests."""
        if self._server is None:
            return 0.0
        pool = self._server.engine.scheduler.kv_cache_manager.block_pool
        return 1.0 - pool.get_num_free_blocks() / max(1, pool.num_gpu_blocks - 1)

    @property
    def is_idle(self) -> bool:
        """Whether its engine has to be woken."""
        return self._driver is not None and self._driver.is_idle

    def next_send_ns(self) -> int | None:
        """Nothing is known here of what is not yet sent: the router wakes the engine (see `Workload`)."""
        return None

    def pop_due(self, now_ns: int) -> list[ClientRequest]:
        """Returns what the router has sent by now (see `Workload`)."""
        self._router.deliver(now_ns)
        due, self._inbox = self._inbox, []
        return due

    def on_done(self, request: ClientRequest, outcome: Outcome, num_output_tokens: int, now_ns: int) -> None:
        """Tells the router that a request has ended (see `Workload`)."""
        self.num_requests -= 1
        self._router.on_done(request, outcome, num_output_tokens, now_ns)
        if self._on_drained is not None and not self.num_requests:
            self._clock.at(self._clock.now_ns, self._on_drained)  # once the step that ended it is accounted for

    def take(self, client: ClientRequest) -> None:
        """Gets a request from the router; a replica that has failed unnoticed loses it at once."""
        if self._server is None:
            self._router.on_failed(client, self.number)
            return
        self.num_requests += 1
        self._inbox.append(client)

    def wake(self) -> None:
        """Lets the engine look at what has come."""
        if self._driver is not None:
            self._driver.wake()

    def start(self, after_ns: int = 0) -> None:
        """Starts the replica, which is ready and listed after this time."""
        self._enter(State.STARTING)
        self._note("start")
        life = self._life
        if after_ns:
            self._clock.at(self._clock.now_ns + after_ns, lambda: self._ready(life))
        else:
            self._ready(life)

    def drain(self, then: Callable[[], None], at_most_ns: int | None = None) -> None:
        """Takes the replica off the router's list, and stops it once its requests have ended, or after this time."""
        self._enter(State.DRAINING)
        self.is_listed = False
        self._note("drain")
        life = self._life

        def over() -> None:
            if self._life == life:
                self.stop("stop")
                then()

        self._on_drained = over
        if not self.num_requests:
            over()
        elif at_most_ns is not None:
            self._clock.at(self._clock.now_ns + at_most_ns, over)

    def stop(self, why: str, noticed_after_ns: int = 0) -> None:
        """Ends the replica at once: what it has not answered fails, what it has cached is gone.

        Args:
            why: `stop` or `fail`, for the log.
            noticed_after_ns: how long the router goes on sending requests there.
        """
        self._enter(State.STOPPED)
        self._note(why)
        server, driver = self._server, self._driver
        self._server = self._driver = self._on_drained = None
        if driver is not None:
            driver.stop()
            self.last_ns = max(self.last_ns, driver.last_ns)
        inbox, self._inbox, self.num_requests = self._inbox, [], 0
        self._outages += 1
        outage = self._outages
        if noticed_after_ns:
            self._clock.at(self._clock.now_ns + noticed_after_ns, lambda: self._delist(outage))
        else:
            self._delist(outage)
        taken = server.take_back() if server is not None else []
        for client, record in [*taken, *((client, None) for client in inbox)]:
            self._router.on_failed(client, self.number, record)
        self._router.deliver(self._clock.now_ns)

    def finish(self) -> list[str]:
        """Returns the server's warnings at the end of the run."""
        if self._driver is not None:
            self.last_ns = max(self.last_ns, self._driver.last_ns)
        return [] if self._server is None else self._server.warnings()

    def _ready(self, life: int) -> None:
        if self._life != life:
            return
        self._enter(State.READY)
        self._server, self._driver = self._make_server(self.number, self)
        self.is_listed = True
        self._note("ready")

    def _delist(self, outage: int) -> None:
        if self._outages == outage and self.state is not State.READY:
            self.is_listed = False
            self._router.forget(self.number)

    def _enter(self, state: State) -> None:
        self.state = state
        self._life += 1

    def _note(self, what: str) -> None:
        self._log.note(self.number, self._clock.now_ns, what)
