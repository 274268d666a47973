"""A run of several replicas: build them, let time pass, gather what they recorded."""

from __future__ import annotations

from sim.api_server import ApiServer
from sim.deployment import Deployment, in_lockstep
from sim.engine.achievable import GRAPH_SIZES
from sim.engine.conditions import SlowGpu, SlowSpan
from sim.engine.engine_core import EngineCore
from sim.engine.process import Clock, EngineDriver
from sim.engine.profile_terms import FittedStepTime
from sim.engine.step_split import StepMeter
from sim.engine.step_time import StepTimeModel
from sim.fleet.lockstep import LockstepGroup, RankCore
from sim.fleet.operations import Autoscaler, plan_failures, plan_switch
from sim.fleet.replica import Driver, Replica
from sim.fleet.router import Router
from sim.fleet.routing import InternalBalance, Routing, routing
from sim.memory.version import parse_version
from sim.records import FleetLog, RunRecord
from sim.scenario.model import Server
from sim.workload.client import Workload

BALANCED_BY_REQUESTS = (0, 32, 0)
"""From this release on vLLM balances its engines by requests in flight (0.32's source); before, by its queue."""


class Fleet:
    """The replicas of a server, and what they share.

    Args:
        deployment: of one replica.
        workload: of all of them.
        run: the records to fill.
        reference: use the reference scheduler even where the fast path applies.
    """

    def __init__(self, deployment: Deployment, workload: Workload, run: RunRecord, *, reference: bool = False) -> None:
        server = deployment.server
        self.server: Server = server
        self.clock = Clock()
        self.log = FleetLog()
        run.fleet = self.log if server.is_fleet else None
        self.replicas: list[Replica] = []
        self._deployment = deployment
        self._run = run
        self._reference = reference
        self._models: list[StepTimeModel] = []
        self._group: LockstepGroup | None = None
        if in_lockstep(server, deployment.model):
            model = deployment.step_time_model()
            self._models.append(model)
            meter = None if run.step_split is None else StepMeter(model, run.step_split)
            self._group = LockstepGroup(self.clock, model, largest_graph=_largest_graph(deployment), meter=meter)
        rule = _rule(deployment)
        self.router = Router(
            workload,
            self.clock,
            rule,
            run,
            log=self.log,
            latency=deployment.latency,
            max_retries=server.router_max_retries,
        )
        self.router.targets = self.replicas
        for _ in range(server.replicas * server.data_parallel_size):
            self.add().start()
        plan_failures(self, server.failures)
        if server.model_switch is not None:
            plan_switch(self, server.model_switch)
        if server.autoscaling is not None:
            Autoscaler(self, server.autoscaling).plan()

    def add(self) -> Replica:
        """Returns a new replica, not started yet."""
        replica = Replica(len(self.replicas), self.router, self.clock, self._make_server, self.log)
        self.replicas.append(replica)
        return replica

    def is_active(self) -> bool:
        """Whether a request is under way or will be sent."""
        return self.router.is_active

    def run(self) -> None:
        """Lets time pass until all is done, and completes the run's record."""
        run = self._run
        self.clock.at(0, lambda: self.router.deliver(0))
        self.clock.run()
        assert not self.router.is_active, "requests are left that nothing will ever serve"
        warnings = [warning for replica in self.replicas for warning in replica.finish()]
        run.end_ns = max(replica.last_ns for replica in self.replicas)
        run.num_replicas = len(self.replicas)
        run.arrivals_end_ns = self.router.workload.arrivals_end_ns
        run.warnings += dict.fromkeys([*warnings, *self.out_of_range()])

    def out_of_range(self) -> list[str]:
        """Returns one sentence for each direction in which a replica's steps left the range of the profile's data."""
        return list(dict.fromkeys(sentence for model in self._models for sentence in model.out_of_range()))

    def _make_server(self, number: int, workload: Workload) -> tuple[ApiServer, Driver]:
        deployment, reference = self._deployment, self._reference
        scheduler_config, cache_config = deployment.scheduler_config, deployment.cache_config
        if self._group is not None:
            rank = RankCore(scheduler_config, cache_config, reference=reference)
            server = self._api_server(number, workload, rank)
            return server, self._group.join(rank, server)
        engine = EngineCore(scheduler_config, cache_config, self._deployment.step_time_model(), reference=reference)
        engine.step_time_model = self._step_time_model(number, engine)
        server = self._api_server(number, workload, engine)
        return server, EngineDriver(self.clock, engine, server)

    def _api_server(self, number: int, workload: Workload, engine: EngineCore) -> ApiServer:
        return ApiServer(
            workload,
            engine,
            self._run,
            limits=self._deployment.limits,
            latency=self._deployment.latency,
            replica=number,
            records=self.router.records,
        )

    def _step_time_model(self, number: int, engine: EngineCore) -> StepTimeModel:
        model: StepTimeModel = self._deployment.step_time_model()
        self._models.append(model)
        spans = slow_spans(self.server, number)
        if spans:
            model = SlowGpu(
                model,
                spans,
                lambda: max(self.clock.now_ns, engine.device_free_ns),
                num_stages=self.server.pipeline_parallel_size,
                async_scheduling=self._deployment.flags.async_scheduling,
            )
        return model if self._run.step_split is None else StepMeter(model, self._run.step_split)


def _largest_graph(deployment: Deployment) -> int:
    """Returns the tokens of the largest captured graph that the step times know of."""
    if deployment.profile is not None:
        step_time = deployment.profile.step_time
        return max(step_time.graph_sizes, default=0) if isinstance(step_time, FittedStepTime) else 0
    return 0 if deployment.flags.enforce_eager else GRAPH_SIZES[-1]


def _rule(deployment: Deployment) -> Routing:
    """Returns the router's rule; between the engines of one server it is vLLM's own."""
    server, cache = deployment.server, deployment.cache_config
    if server.data_parallel_size > 1:
        return InternalBalance(by_requests_in_flight=parse_version(server.version) >= BALANCED_BY_REQUESTS)
    return routing(server.router, cached_tokens=cache.num_gpu_blocks * cache.block_size)


def slow_spans(server: Server, number: int) -> list[SlowSpan]:
    """Returns when a GPU of a replica is slow."""
    return [
        SlowSpan(round(slow.after * 1e9), 1 << 62 if slow.until is None else round(slow.until * 1e9), slow.factor)
        for slow in server.slow_gpus
        if slow.replica == number
    ]
