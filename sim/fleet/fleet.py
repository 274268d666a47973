"""A run of several replicas: build them, let time pass, gather what they recorded."""

from __future__ import annotations

from sim.api_server import ApiServer
from sim.deployment import Deployment
from sim.engine.conditions import SlowGpu, SlowSpan
from sim.engine.engine_core import EngineCore
from sim.engine.process import Clock
from sim.engine.step_split import StepMeter
from sim.engine.step_time import StepTimeModel
from sim.fleet.operations import Autoscaler, plan_failures, plan_switch
from sim.fleet.replica import Replica
from sim.fleet.router import Router
from sim.fleet.routing import routing
from sim.records import FleetLog, RunRecord
from sim.scenario.model import Server
from sim.workload.client import Workload


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
        cache = deployment.cache_config
        rule = routing(server.router, cached_tokens=cache.num_gpu_blocks * cache.block_size)
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
        for _ in range(server.replicas):
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
        out_of_range = [sentence for model in self._models for sentence in model.out_of_range()]
        run.warnings += dict.fromkeys([*warnings, *out_of_range])

    def _make_server(self, number: int, workload: Workload) -> ApiServer:
        deployment = self._deployment
        healthy = deployment.step_time_model()
        self._models.append(healthy)
        model: StepTimeModel = healthy
        spans = slow_spans(self.server, number)
        if spans:
            model = SlowGpu(
                healthy,
                spans,
                lambda: max(self.clock.now_ns, engine.device_free_ns),
                num_stages=self.server.pipeline_parallel_size,
                async_scheduling=deployment.flags.async_scheduling,
            )
        if self._run.step_split is not None:
            model = StepMeter(model, self._run.step_split)
        engine = EngineCore(
            deployment.scheduler_config, deployment.cache_config, model, reference=self._reference
        )  # fmt: skip
        return ApiServer(
            workload,
            engine,
            self._run,
            limits=deployment.limits,
            latency=deployment.latency,
            replica=number,
            records=self.router.records,
        )


def slow_spans(server: Server, number: int) -> list[SlowSpan]:
    """Returns when a GPU of a replica is slow."""
    return [
        SlowSpan(round(slow.after * 1e9), 1 << 62 if slow.until is None else round(slow.until * 1e9), slow.factor)
        for slow in server.slow_gpus
        if slow.replica == number
    ]
