"""What several replicas behind a router have in a scenario: the router, autoscaling, failures, a model switch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sim.scenario.bounds import MOST_REPLICAS
from sim.scenario.part import Part
from sim.scenario.units import Duration

Router = Literal["round_robin", "least_requests", "session_affinity", "prefix_aware"]
"""How the router chooses a replica; `sim.fleet.routing` says which real router each one is."""


class Autoscaling(Part):
    """Replicas started and stopped by load, as Kubernetes' HorizontalPodAutoscaler decides it."""

    min: int = Field(default=1, gt=0, description="Fewest replicas.")
    max: int = Field(gt=0, le=MOST_REPLICAS, description="Most replicas.")
    metric: Literal["waiting", "requests", "kv"] = Field(
        default="waiting",
        description="What is looked at, mean of the ready replicas: requests in vLLM's queue, requests in flight, or "
        "the share of the KV cache in use.",
    )
    target: float = Field(gt=0, description="Where the metric should be: requests of a replica, or a share (kv).")
    every: Duration = Field(default=15.0, gt=0, description="Time between two looks.")
    start_up: Duration = Field(description="From the decision to a replica that serves: machine, image, weights.")
    scale_down_after: Duration = Field(
        default=300.0, description="A replica is stopped when fewer would have been enough for this long."
    )


class Failure(Part):
    """A replica that fails: what it was serving is lost, its cache too."""

    after: Duration = Field(description="Time of the failure, from the start of the run.")
    replica: int = Field(default=0, ge=0, description="Which replica, counted from 0.")
    restart: Duration | None = Field(
        default=None, description="From the failure to a replica that serves again; without it: never."
    )
    noticed_after: Duration = Field(
        default=0.0, description="Until the router notices; what it sends there before fails at once."
    )


class SlowGpu(Part):
    """One GPU of a replica is slower for a time (hot, or throttled): all GPUs of the replica wait for it."""

    factor: float = Field(ge=1, le=1000, description="How many times as long it takes.")
    after: Duration = Field(default=0.0, description="From here on, counted from the start of the run.")
    until: Duration | None = Field(default=None, description="Until here. Default: to the end.")
    replica: int = Field(default=0, ge=0, description="Which replica, counted from 0.")


class ModelSwitch(Part):
    """A rolling update: one replica at a time is drained, restarted with the new weights, and put back."""

    after: Duration = Field(description="Time of the first replica's drain, from the start of the run.")
    load_time: Duration = Field(gt=0, description="From the stop of a replica to its serving again.")
    drain: Duration = Field(
        default=30.0, description="Longest wait for running answers; what is not done by then is lost."
    )
