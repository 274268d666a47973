"""The answer of a plan: one row a candidate."""

from __future__ import annotations

from dataclasses import dataclass

from sim.planning.candidates import Candidate
from sim.scenario.model import Objective


@dataclass(frozen=True, slots=True)
class Check:
    """A number of replicas at a load, simulated.

    Attributes:
        replicas: how many.
        load: in the plan's unit.
        holds: whether every objective is met and the queue does not grow.
        nearest: the objective that is nearest to its bound, or breaks by most.
        value: its measure, in its own unit; None without data.
        excess: its measure-to-bound ratio: above 1 where it breaks.
        overloaded: whether the queue grows as long as the load lasts.
        warnings: what the simulation says of itself.
    """

    replicas: int
    load: float
    holds: bool
    nearest: Objective
    value: float | None
    excess: float
    overloaded: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What one candidate needs.

    Attributes:
        candidate: GPU and tensor parallelism.
        replicas: the fewest that hold; None where it is not known, or none do.
        one_replica: the load that one replica supports; None where it was not found out.
        at_least: whether one replica supports more: the search ended there.
        peak: that many replicas at the peak.
        loss: one fewer at the load itself; None where the loss of a replica was not asked for.
        price_per_hour: of all GPUs; None without a price.
        calibrated: whether the step times were fitted to a real server of this kind.
        spot_check: why a measurement on the real server is due, one reason each; empty where none is.
        command: runs this row alone.
        broken: the last check that was made, where nothing held.
        problem: why there is no number; None where there is.
    """

    candidate: Candidate
    replicas: int | None = None
    one_replica: float | None = None
    at_least: bool = False
    peak: Check | None = None
    loss: Check | None = None
    price_per_hour: float | None = None
    calibrated: bool = False
    spot_check: tuple[str, ...] = ()
    command: str | None = None
    broken: Check | None = None
    problem: str | None = None

    @property
    def num_gpus(self) -> int | None:
        """GPUs of all replicas."""
        return None if self.replicas is None else self.replicas * self.candidate.gpus_per_replica
