"""Many independent calls at once, on the cores of this machine or on a Ray cluster, through joblib.

A call that fails costs nothing but itself: its exception comes back as a `Failure`. A worker process that is killed
(out of memory, a crash below Python) takes down joblib's whole pool, so that the calls in flight are lost with it and
nobody knows which one was to blame. Then each of them is tried again alone: the innocent succeed, and the one whose
worker dies a second time is named. All others go on in a fresh pool.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal, TypeVar

from sim.errors import UserError

Cluster = Literal["ray"]
Task = TypeVar("Task")
Result = TypeVar("Result")

KILLED = "its worker process was killed twice; most often that is a lack of memory: fewer --jobs, or a smaller run"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call gave no result.

    Attributes:
        cause: one line for a person.
        details: the traceback; empty where the cause says all.
    """

    cause: str
    details: str = ""

    def as_error(self, what: str) -> Exception:
        """Returns it as an exception, for a caller who cannot go on without the result.

        Args:
            what: names the call; left out where the cause is the user's input, which says itself where it is wrong.
        """
        if self.details:
            return RuntimeError(f"{what}: {self.cause}\n{self.details}")
        return UserError(f"{what}: {self.cause}" if self.cause == KILLED else self.cause)


def call_each(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, jobs: int = 1, cluster: Cluster | None = None
) -> Iterator[tuple[int, Result | Failure]]:
    """Calls a function with each task, and yields (place of the task, its result) in the order in which they finish.

    To close the iterator, or Ctrl-C, ends the worker processes.

    Args:
        function: what to call; picklable when it is called in workers.
        tasks: its arguments, picklable as well. They are started in this order.
        jobs: worker processes at most; 1 calls in this process, unless there is a cluster.
        cluster: call on the workers of a cluster instead of on those of this machine.

    Raises:
        UserError: there is no such cluster.
    """
    if cluster is None and jobs == 1:
        for place, task in enumerate(tasks):
            yield place, _guarded(function, task)
        return
    if cluster is not None:
        _connect()
    pool = _Pool(function, tasks, jobs, cluster)
    left = list(range(len(tasks)))
    while left:
        yield from pool.call(left)
        left = [place for place in left if place not in pool.done]
        for suspect in pool.suspects:
            yield suspect, pool.call_alone(suspect)
            left.remove(suspect)


def num_workers(jobs: int | None, cluster: Cluster | None) -> int:
    """Returns how many calls run at the same time: as many as asked for, else one a core.

    Raises:
        UserError: there is no such cluster.
    """
    if jobs is not None:
        return jobs
    if cluster is None:
        import joblib  # noqa: PLC0415 - a tenth of a second that a single run need not pay

        return int(joblib.cpu_count())
    _connect()
    import ray  # noqa: PLC0415 - an extra

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@dataclass(slots=True)
class _Pool:
    """Worker processes for a list of tasks.

    Attributes:
        done: places of the tasks whose results have come back.
        suspects: places of the tasks that were with a pool when it broke; empty when it did not.
    """

    function: Callable[[Any], Any]
    tasks: Sequence[Any]
    jobs: int
    cluster: Cluster | None
    done: set[int] = field(default_factory=set)
    suspects: list[int] = field(default_factory=list)

    def call(self, places: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Calls with the tasks at these places until all are done or the pool breaks."""
        from joblib import Parallel, delayed  # noqa: PLC0415 - see num_workers

        sent: list[int] = []
        is_open = True

        def to_send() -> Iterator[Any]:
            for place in places:
                if not is_open:
                    return
                sent.append(place)
                yield delayed(_placed)(self.function, place, self.tasks[place])

        # One call a worker, and the next only when one is done: what was sent and has not come back is in flight.
        # joblib makes no workers for a single job, and a call that may kill its process must not run in this one.
        jobs = max(2, self.jobs)
        self.suspects, results = [], None
        with _backend(self.cluster):
            parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch=jobs, batch_size=1)
            try:
                with _interrupts_wait():
                    results = parallel(to_send())
                for place, result in results:
                    self.done.add(place)
                    yield place, result
            except _broken_pool(self.cluster):
                self.suspects = [place for place in sent if place not in self.done]
            except BaseException:  # closed, or Ctrl-C
                is_open = False
                _cut_off(results)
                raise

    def call_alone(self, place: int) -> Any:
        """Calls with one task in a pool of its own."""
        for _, result in self.call([place]):
            return result
        return Failure(KILLED)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Puts Ctrl-C and the TERM signal off: a worker whose parent goes while it starts complains, and on stdout."""
    if threading.current_thread() is not threading.main_thread():  # signals come to the main thread alone
        yield
        return
    came: list[int] = []

    def later(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    # Not by a mask: loky unblocks both when it starts its resource tracker.
    before = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


def _cut_off(results: Any) -> None:
    """Ends the calls in progress by killing their processes."""
    if results is None:
        return
    time.sleep(0.05)  # loky stumbles over a call that comes while it shuts down: let the last one arrive
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is said that calls are cut off; that is what is wanted
        results.close()


def _placed(function: Callable[[Task], Result], place: int, task: Task) -> tuple[int, Result | Failure]:
    return place, _guarded(function, task)


def _guarded(function: Callable[[Task], Result], task: Task) -> Result | Failure:
    try:
        return function(task)
    except UserError as error:
        return Failure(str(error))
    except Exception as error:  # whatever it is: the other calls go on
        said = str(error).strip().splitlines()
        return Failure(f"{type(error).__name__}: {said[0]}" if said else type(error).__name__, traceback.format_exc())


def _backend(cluster: Cluster | None) -> AbstractContextManager[Any]:
    """Chooses where joblib calls. A run computes on one thread: more would only get in each other's way."""
    from joblib import parallel_config  # noqa: PLC0415 - see num_workers

    if cluster is None:
        _let_workers_be_killed()
        return parallel_config(backend="loky", inner_max_num_threads=1)  # type: ignore[no-any-return]
    return parallel_config(backend="ray")  # type: ignore[no-any-return]


def _let_workers_be_killed() -> None:
    """Gives loky's processes the `kill` that they lack.

    loky kills its workers by psutil or the program pgrep; where there is neither, as in a slim image, or where pgrep is
    ended by the signal that ends this program, it warns and calls `kill`. Without one its thread dies, and to shut the
    pool down takes for ever.
    """
    if os.name != "posix":
        return
    from joblib.externals.loky.backend.popen_loky_posix import Popen  # noqa: PLC0415 - see num_workers

    if not hasattr(Popen, "kill"):
        Popen.kill = lambda process: os.kill(process.pid, signal.SIGKILL)
    warnings.filterwarnings("ignore", message="Failed to kill subprocesses on this platform")


def _broken_pool(cluster: Cluster | None) -> tuple[type[Exception], ...]:
    if cluster is None:
        return (BrokenExecutor,)
    from ray.exceptions import RayError  # noqa: PLC0415 - an extra

    return (RayError,)


def _connect() -> None:
    """Makes joblib's `ray` backend, connected to the cluster that runs.

    Raises:
        UserError: ray is not installed, or no cluster runs.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
        from ray.util.joblib.ray_backend import RayBackend  # noqa: PLC0415
    except ImportError:
        raise UserError("--cluster ray: ray is not installed; install it with: pip install 'headcount[ray]'") from None
    from joblib.parallel import register_parallel_backend  # noqa: PLC0415 - see num_workers

    # The backend refuses to hand out results as they come, although its pool does so.
    streaming = type("StreamingRayBackend", (RayBackend,), {"supports_return_generator": True})
    register_parallel_backend("ray", streaming)
    if ray.is_initialized():
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR, configure_logging=True)
    except ConnectionError:
        raise UserError(
            "--cluster ray: no Ray cluster runs here; start one with `ray start --head`, "
            "or give the address of one in RAY_ADDRESS"
        ) from None
