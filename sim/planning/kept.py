"""The runs of a plan, kept on disk as those of a sweep are: an interrupted plan goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim.capacity.runs import Load, Runs
from sim.sweep.kept import KeptRuns, address

Told = Callable[[str], None]
"""Is told in one line how far a plan is."""


@dataclass(slots=True)
class KeptSearch(Runs):
    """The runs of one scenario; those that a folder holds already are not made again.

    Attributes:
        kept: the folder; None keeps nothing.
        tell: is told of each run.
        about: the candidate, in a few words.
    """

    kept: KeptRuns | None = None
    tell: Told | None = None
    about: str = ""

    def __post_init__(self) -> None:
        self.progress = self._keep

    def make(self, wanted: Sequence[tuple[Load, int]]) -> None:
        """Makes those of the (load, seed) pairs that are neither known nor kept."""
        if self.kept is not None:
            for load, seed in wanted:
                if (load, seed) not in self._results:
                    found = self.kept.get(address(self.scenario, load, seed))
                    if found is not None:
                        self._results[load, seed] = found
        Runs.make(self, wanted)  # super() does not work in a dataclass with slots

    def _keep(self, num_made: int, load: Load, seed: int) -> None:
        if self.kept is not None:
            server = self.scenario.server
            about = {"gpu": server.gpu, "replicas": server.replicas, "load": load, "seed": seed}
            self.kept.keep(address(self.scenario, load, seed), self._results[load, seed], about)
        if self.tell is not None and load is not None:
            self.tell(f"{self.about}: {num_made} runs, now at {load:g}")
