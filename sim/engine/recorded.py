"""Two step-time models for checking the scheduler itself: durations as recorded, and a stated linear cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sim.engine.step_time import STEP_PARTS, Batch
from sim.errors import UserError


class RecordedSteps:
    """Replays the durations of a real run, one a step, whatever the batch holds.

    The times are right only while the simulated steps are the recorded ones, so asking for more steps than were
    recorded is an error, and `num_left` tells whether all were used.
    """

    calibrated = True  # the numbers are a real server's own

    def __init__(self, durations_ns: Iterable[int], name: str = "recorded") -> None:
        self.name = name
        self._durations_ns = list(durations_ns)
        for number, duration in enumerate(self._durations_ns):
            if duration < 0:
                raise UserError(f"{name}: step {number}: a step cannot last {duration} ns")
        self._next = 0

    @property
    def num_left(self) -> int:
        """Recorded steps not yet replayed."""
        return len(self._durations_ns) - self._next

    def step_time(self, batch: Batch) -> int:
        """Returns the next recorded duration in nanoseconds.

        Raises:
            UserError: the simulation takes more steps than were recorded.
        """
        if self._next == len(self._durations_ns):
            raise UserError(
                f"{self.name}: the simulation takes more steps than the {self._next} recorded ones "
                f"(the next has {batch.num_requests} requests and {batch.num_tokens} tokens): the schedules differ"
            )
        duration = self._durations_ns[self._next]
        self._next += 1
        return duration

    def out_of_range(self) -> list[str]:
        """Returns nothing: a recorded duration is never an extrapolation."""
        return []


@dataclass(frozen=True, slots=True)
class LinearCost:
    """The cost that recorded schedules state: whole microseconds, a sum of four terms.

        base + per_token · tokens + per_seq · requests + (per_1k_context · context) // 1000

    where the context is the tokens computed before the step, summed over all requests of it.
    """

    base: int
    per_token: int = 0
    per_seq: int = 0
    per_1k_context: int = 0
    name: str = "linear"
    calibrated: bool = False

    def step_time(self, batch: Batch) -> int:
        """Returns the step's duration in nanoseconds; a step without tokens takes no time."""
        if not batch.num_tokens:
            return 0
        context = batch.decode_context + batch.chunk_context
        return 1000 * (
            self.base
            + self.per_token * batch.num_tokens
            + self.per_seq * batch.num_requests
            + self.per_1k_context * context // 1000
        )

    def parts(self, batch: Batch) -> dict[str, int]:
        """Returns the step's nanoseconds by part (`STEP_PARTS`)."""
        context = batch.decode_context + batch.chunk_context
        kv_reads = 1000 * (self.per_1k_context * context // 1000)
        sequences = 1000 * self.per_seq * batch.num_requests
        gemm = self.step_time(batch) - kv_reads - sequences
        return dict(zip(STEP_PARTS, (gemm, 0, kv_reads, sequences, 0, 0), strict=True))

    def out_of_range(self) -> list[str]:
        """Returns nothing: a stated cost holds everywhere."""
        return []
