"""Which part of a run counts: the steady-state window."""

from __future__ import annotations

from dataclasses import dataclass

from sim.records import RunRecord


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of a run that its numbers describe, both ends included.

    Attributes:
        start_ns: where the warm-up ends.
        end_ns: where new work stops; for a finite workload, where the last request ends.
        finite: whether the workload is a fixed amount of work (closed loop, trace, all at once), run to its end.
    """

    start_ns: int
    end_ns: int
    finite: bool

    @property
    def length_ns(self) -> int:
        """How long the window is; 0 when the run was over before its warm-up."""
        return max(0, self.end_ns - self.start_ns)

    @property
    def length_s(self) -> float:
        """The same in seconds."""
        return self.length_ns / 1e9

    def sentence(self) -> str:
        """States the window as a person reads it."""
        start, end = self.start_ns / 1e9, self.end_ns / 1e9
        if self.length_ns == 0:
            return f"empty window: the run ended at {end:.6g} s, its warm-up at {start:.6g} s"
        if not self.finite:
            return f"steady-state window: requests sent from {start:.6g} s to {end:.6g} s of each run"
        if self.start_ns == 0:
            return f"window: the whole run, {end:.6g} s"
        return f"window: the whole run after a warm-up of {start:.6g} s, to {end:.6g} s"


def steady_window(run: RunRecord, *, warm_up_ns: int = 0, finite: bool = False) -> Window:
    """Returns the window of a run: from the warm-up to the end of arrivals, or to the end for finite workloads.

    What happens after the last arrival is left out of an endless workload, since a server that drains is not the
    server its users see. Requests sent in the window count in full, also what happens to them after it.
    """
    return Window(start_ns=warm_up_ns, end_ns=run.end_ns if finite else run.arrivals_end_ns, finite=finite)
