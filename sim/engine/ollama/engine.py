"""An Ollama server in virtual time: the scheduler, and the batches of every loaded model.

The driver hands in requests, and calls `advance` at each moment that `next_event_ns` names: batches end, loads end,
memory comes back. Then every runner that has work and no batch under way starts the next one. Runners of different
models compute at the same time and share the GPU that they are on.
"""

from __future__ import annotations

from sim.engine.ollama.request import OllamaRequest
from sim.engine.ollama.runner import Step, StepResult
from sim.engine.ollama.scheduler import Loaded, Scheduler

StepDone = tuple[int, Step, StepResult]
"""A model, its batch that has just ended, and what that gave."""


class OllamaEngine:
    """All of a server behind its HTTP interface.

    Args:
        scheduler: gives requests a runner.
        warm: the run finds as many models loaded as fit, in their order.
    """

    def __init__(self, scheduler: Scheduler, *, warm: bool) -> None:
        self.scheduler = scheduler
        self._computing: list[tuple[int, Loaded]] = []  # whose batch ends when; few, so a list
        if warm:
            scheduler.preload()

    def submit(self, request: OllamaRequest, now_ns: int) -> bool:
        """Takes a request; False: it is answered 503."""
        return self.scheduler.submit(request, now_ns)

    def cancel(self, request: OllamaRequest, now_ns: int) -> None:
        """Lets go of a request whose client gave up."""
        self.scheduler.cancel(request, now_ns)

    def next_event_ns(self) -> int | None:
        """Returns when something happens by itself; None: nothing does before a request comes."""
        times = [end_ns for end_ns, _ in self._computing]
        scheduled_ns = self.scheduler.next_event_ns()
        if scheduled_ns is not None:
            times.append(scheduled_ns)
        return min(times, default=None)

    def advance(self, now_ns: int) -> list[StepDone]:
        """Takes in the batches that have ended by now, and does what the scheduler has to do."""
        done: list[StepDone] = []
        ended = [(end_ns, loaded) for end_ns, loaded in self._computing if end_ns <= now_ns]
        if ended:
            self._computing = [item for item in self._computing if item[0] > now_ns]
        for end_ns, loaded in ended:
            step = loaded.runner.step
            assert step is not None, "a batch ends once"
            result = loaded.runner.complete()
            for request in result.finished:
                self.scheduler.release(request, end_ns)
            done.append((loaded.model_id, step, result))
        self.scheduler.advance(now_ns)
        return done

    def dispatch(self, now_ns: int, until_ns: int | None) -> None:
        """Starts a batch on every runner that has work and none under way.

        Args:
            now_ns: the time.
            until_ns: no request comes or is given up before; None: none does before an answer is complete.
        """
        scheduled_ns = self.scheduler.next_event_ns()
        if scheduled_ns is not None:
            until_ns = scheduled_ns if until_ns is None else min(until_ns, scheduled_ns)
        for loaded in list(self.scheduler.loaded.values()):
            runner = loaded.runner
            if runner.step is None and not runner.is_idle:
                step = runner.dispatch(now_ns, 1 + self._sharing(loaded), until_ns)
                if step is not None:
                    self._computing.append((step.end_ns, loaded))

    def _sharing(self, loaded: Loaded) -> int:
        """Returns how many other runners compute on a GPU of this one."""
        return sum(not set(other.gpus).isdisjoint(loaded.gpus) for _, other in self._computing)
