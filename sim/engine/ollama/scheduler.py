"""Ollama's scheduler: which models are loaded, who waits for one, and which has to go (server/sched.go).

One loop takes one pending request after another and works on each until it has a runner: it may have to mark a victim,
wait until the victim's requests are done, wait until its memory is back, and load. Meanwhile up to MAX_QUEUE requests
wait behind it; one more is answered 503.

    submit ──> loaded? ──yes (source rule)───────────────> runner (no limit on who waits there)
                 │ no                                         ^
                 v                                            │
              queue (MAX_QUEUE) ──> in hand: evict, load ─────┘
                 full: 503
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sim.engine.ollama.placement import Host, Placement
from sim.engine.ollama.request import OllamaRequest, State
from sim.engine.ollama.rules import Queue
from sim.engine.ollama.runner import Runner, RunnerConfig
from sim.engine.step_time import StepTimeModel

START_NS = 100_000_000
"""From taking a request to registering its runner: the list of GPUs, the file's header, a process. An assumption; from
then on requests for the model wait for the load itself rather than in the queue."""

VRAM_RECOVERY_NS = 1_000_000_000
"""From unloading a model until the GPU's memory is free again: Ollama looks every 250 ms, 0.5 to 1.5 s as a rule."""

Cause = Literal["room", "options", "keep_alive"]
"""Why a model was unloaded: to make room, because a request wants it with other options, or nobody asked for it. (No
load runs into OLLAMA_LOAD_TIMEOUT here: that is five minutes without progress, and these always progress.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model as requests ask for it.

    Attributes:
        name: what requests call it.
        path: its file; models with equal paths are one file, loaded with different options.
        runner: slots and batches.
        keep_alive_ns: how long it stays loaded without requests; 0: not at all; None: for ever.
        load_ns: from the disk.
        reload_ns: once it has been loaded: from the page cache.
        step_time_model: what its batches cost.
    """

    name: str
    path: str
    runner: RunnerConfig
    keep_alive_ns: int | None
    load_ns: int
    reload_ns: int
    step_time_model: StepTimeModel

    @property
    def placement(self) -> Placement:
        """Where it goes."""
        return self.runner.placement


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a model."""

    model_id: int
    start_ns: int
    end_ns: int
    aborted: bool  # its client gave up before it was done, or it ran out of memory


@dataclass(frozen=True, slots=True)
class Unload:
    """One model unloaded."""

    model_id: int
    time_ns: int
    cause: Cause


@dataclass(slots=True, eq=False)
class Loaded:
    """A model in memory, or on its way there (sched.go: runnerRef)."""

    model_id: int
    model: ModelConfig
    gpus: tuple[int, ...]
    start_ns: int
    registered_ns: int
    ready_ns: int
    runner: Runner
    overflows: bool = False  # its load is going to run out of memory
    is_ready: bool = False
    ref_count: int = 0
    keep_alive_ns: int | None = None
    is_victim: bool = False
    cause: Cause = "keep_alive"
    expires_ns: int | None = None
    lock: list[OllamaRequest] = field(default_factory=list)  # wait on the runner's lock until it is ready


class Scheduler:
    """Gives each request a runner.

    Args:
        models: what requests may ask for, by index.
        host: the GPUs.
        queue_rule: who waits while a model loads.
        max_queue: OLLAMA_MAX_QUEUE.
        max_loaded_models: OLLAMA_MAX_LOADED_MODELS.
        fit_share: part of the free memory that a model beside others may take; below 1 (since 0.30) by Ollama's
            prediction alone, which knows no buffers: a load may then run out of memory.
    """

    def __init__(
        self,
        models: Sequence[ModelConfig],
        host: Host,
        *,
        queue_rule: Queue,
        max_queue: int,
        max_loaded_models: int,
        fit_share: float,
    ) -> None:
        self.models = tuple(models)
        self.host = host
        self.queue_rule = queue_rule
        self.max_queue = max_queue
        self.max_loaded_models = max_loaded_models
        self.fit_share = fit_share
        self.loaded: dict[str, Loaded] = {}
        self.queue: deque[OllamaRequest] = deque()
        self.in_hand: OllamaRequest | None = None
        self.loads: list[Load] = []
        self.unloads: list[Unload] = []
        self.rejected: list[OllamaRequest] = []  # answered 503 after all: the load that they waited for was aborted
        self._alone: str | None = None  # a path whose load ran out of memory: all others go before it is tried again
        self._wait_until_ns: int | None = None  # the loop waits for memory to come back
        self._was_loaded: set[str] = set()
        self._loaded_of: dict[OllamaRequest, Loaded] = {}

    def preload(self) -> None:
        """Loads as many models as fit, in order, before the first request; each stays as if just used."""
        for model_id, model in enumerate(self.models):
            gpus = self._fit(model)
            full = len(self.loaded) >= self.max_loaded_models
            if model.path in self.loaded or gpus is None or full or self._overflows(model, gpus):
                continue
            loaded = self._new(model_id, gpus, 0, 0)
            loaded.is_ready = True
            self._was_loaded.add(model.path)
            loaded.expires_ns = model.keep_alive_ns  # also 0: it was loaded by a request that has just ended

    def submit(self, request: OllamaRequest, now_ns: int) -> bool:
        """Takes a request, unless the queue is full: then it is answered 503."""
        model = self.models[request.model_id]
        loaded = self.loaded.get(model.path)
        if self.queue_rule == "source" and loaded is not None and not self._needs_reload(loaded, request):
            if loaded.is_ready:
                self._hand_over(loaded, request, now_ns)
                return True
            if now_ns >= loaded.registered_ns:
                loaded.lock.append(request)
                return True
        if self.in_hand is None and not self.queue:
            self.in_hand = request
            self._work(now_ns)
            return True
        if len(self.queue) >= self.max_queue:
            return False
        self.queue.append(request)
        return True

    def cancel(self, request: OllamaRequest, now_ns: int) -> None:
        """Lets go of a request whose client gave up.

        One in the queue keeps its place until the loop takes it and finds it cancelled. A load whose client gives up
        is aborted ("client closed connection before server finished loading").
        """
        loaded = self._loaded_of.get(request)
        if loaded is not None:
            loaded.runner.cancel(request, now_ns)
            self.release(request, now_ns)
            return
        request.state = State.CANCELLED
        if request is self.in_hand:
            loading = self.loaded.get(self.models[request.model_id].path)
            if loading is not None and not loading.is_ready:
                self._abort_load(loading, now_ns)

    def release(self, request: OllamaRequest, now_ns: int) -> None:
        """Notes that a request of a runner has ended."""
        loaded = self._loaded_of.pop(request)
        loaded.ref_count -= 1
        if not loaded.ref_count:
            self._idle(loaded, now_ns)

    def next_event_ns(self) -> int | None:
        """Returns when a load ends, or memory is back: what somebody waits for. Keep-alives make nobody wait."""
        times = [loaded.ready_ns for loaded in self.loaded.values() if not loaded.is_ready]
        if self._wait_until_ns is not None:
            times.append(self._wait_until_ns)
        return min(times, default=None)

    def advance(self, now_ns: int) -> None:
        """Does what is due: keep-alives run out, loads end, the loop goes on."""
        for loaded in list(self.loaded.values()):
            if loaded.expires_ns is not None and loaded.expires_ns <= now_ns:
                self._unload(loaded, loaded.expires_ns)
        for loaded in list(self.loaded.values()):
            if not loaded.is_ready and loaded.ready_ns <= now_ns:
                self._end_load(loaded, now_ns)
        if self._wait_until_ns is not None and self._wait_until_ns <= now_ns:
            self._wait_until_ns = None
            self._work(now_ns)

    def num_waiting(self) -> int:
        """Returns how many requests have no runner yet."""
        return len(self.queue) + (self.in_hand is not None) + sum(len(each.lock) for each in self.loaded.values())

    # ---- the loop ----

    def _work(self, now_ns: int) -> None:
        """Works on the request in hand, and on those behind it, until one has to wait."""
        while True:
            if self.in_hand is None:
                if not self.queue:
                    return
                self.in_hand = self.queue.popleft()
            request = self.in_hand
            if request.state is State.CANCELLED:
                self.in_hand = None
                continue
            model = self.models[request.model_id]
            loaded = self.loaded.get(model.path)
            if loaded is None:
                has_room = len(self.loaded) < self.max_loaded_models and not (self.loaded and self._alone == model.path)
                gpus = self._fit(model) if has_room else None
                if gpus is not None:
                    self._start_load(request.model_id, gpus, now_ns)
                    return
                self._evict(self._victim(), "room", now_ns)
                return
            if self._needs_reload(loaded, request):
                self._evict(loaded, "options", now_ns)
                return
            if not loaded.is_ready:
                return
            self.in_hand = None
            self._hand_over(loaded, request, now_ns)

    def _evict(self, victim: Loaded, cause: Cause, now_ns: int) -> None:
        """Marks a model to be unloaded once its requests are done; the loop waits for that, and for its memory."""
        victim.is_victim, victim.cause, victim.expires_ns = True, cause, None
        if not victim.ref_count and victim.is_ready:
            self._unload(victim, now_ns)

    def _victim(self) -> Loaded:
        """findRunnerToUnload: by keep-alive, then path; the first that is idle, else the first."""
        forever = 2**63
        order = sorted(
            self.loaded.values(),
            key=lambda each: (forever if each.keep_alive_ns is None else each.keep_alive_ns, each.model.path),
        )
        return next((each for each in order if not each.ref_count), order[0])

    def _fit(self, model: ModelConfig) -> tuple[int, ...] | None:
        """Returns the GPUs that a model goes to; None: it has to wait for room. Alone it goes in any case."""
        free, placement = self._free_bytes(), model.placement
        if not free:  # models in RAM alone
            taken = sum(loaded.model.placement.ram_bytes for loaded in self.loaded.values())
            fits = not self.loaded or placement.ram_bytes <= self.host.ram_bytes - taken
            return () if fits else None
        roomiest = max(range(len(free)), key=lambda gpu: free[gpu])
        share = self.fit_share if self.loaded else 1.0
        wanted = placement.gpu_bytes
        if self.loaded:
            wanted = placement.predicted_bytes if share < 1 else max(placement.predicted_bytes, wanted)
        if wanted <= share * free[roomiest]:
            return (roomiest,)
        if not self.loaded or wanted <= share * sum(free):
            return tuple(range(len(free)))
        return None

    def _free_bytes(self) -> list[float]:
        """Returns what no loaded model has of each GPU."""
        free = [self.host.gpu_bytes] * self.host.num_gpus
        for loaded in self.loaded.values():
            for gpu in loaded.gpus:
                free[gpu] -= loaded.model.placement.gpu_bytes / len(loaded.gpus)
        return free

    def _overflows(self, model: ModelConfig, gpus: tuple[int, ...]) -> bool:
        """Whether a load that the prediction lets begin takes more than is free beside the models loaded now."""
        free = self._free_bytes()
        return bool(self.loaded) and any(model.placement.gpu_bytes / len(gpus) > free[gpu] for gpu in gpus)

    def _needs_reload(self, loaded: Loaded, request: OllamaRequest) -> bool:
        """Whether a request asks for the file with other options than it was loaded with."""
        return loaded.model.placement.options != self.models[request.model_id].placement.options

    def _hand_over(self, loaded: Loaded, request: OllamaRequest, now_ns: int) -> None:
        loaded.ref_count += 1
        loaded.expires_ns = None
        loaded.keep_alive_ns = self.models[request.model_id].keep_alive_ns  # that of the last request
        self._loaded_of[request] = loaded
        loaded.runner.submit(request, now_ns)

    # ---- loads ----

    def _new(self, model_id: int, gpus: tuple[int, ...], now_ns: int, load_ns: int) -> Loaded:
        model = self.models[model_id]
        loaded = Loaded(
            model_id=model_id,
            model=model,
            gpus=gpus,
            start_ns=now_ns,
            registered_ns=now_ns + min(START_NS, load_ns),
            ready_ns=now_ns + load_ns,
            runner=Runner(model.runner, model.step_time_model),
            keep_alive_ns=model.keep_alive_ns,
        )
        self.loaded[model.path] = loaded
        return loaded

    def _start_load(self, model_id: int, gpus: tuple[int, ...], now_ns: int) -> None:
        model = self.models[model_id]
        cached = model.path in self._was_loaded
        overflows = self._overflows(model, gpus)
        loaded = self._new(model_id, gpus, now_ns, model.reload_ns if cached else model.load_ns)
        loaded.overflows = overflows
        if loaded.ready_ns <= now_ns:
            self._end_load(loaded, now_ns)

    def _end_load(self, loaded: Loaded, now_ns: int) -> None:
        if loaded.overflows:
            self._run_out_of_memory(loaded, now_ns)
            return
        loaded.is_ready, self._alone = True, None
        self._was_loaded.add(loaded.model.path)
        self.loads.append(Load(loaded.model_id, loaded.start_ns, now_ns, aborted=False))
        request, self.in_hand = self.in_hand, None
        assert request is not None, "a load without a request in hand"
        waiting, loaded.lock = loaded.lock, []
        for each in (request, *waiting):
            if each.state is not State.CANCELLED:
                self._hand_over(loaded, each, now_ns)
        if not loaded.ref_count:
            self._idle(loaded, now_ns)
        self._work(now_ns)

    def _run_out_of_memory(self, loading: Loaded, now_ns: int) -> None:
        """Ends a load whose context or buffers found no room: all other models go, and it is tried once more, alone."""
        del self.loaded[loading.model.path]
        self.loads.append(Load(loading.model_id, loading.start_ns, now_ns, aborted=True))
        self._was_loaded.add(loading.model.path)  # its file was read
        self._alone = loading.model.path
        for request in loading.lock:
            self.queue.append(request)  # they hold no place in the channel, and are not turned away
        self._work(now_ns)

    def _abort_load(self, loading: Loaded, now_ns: int) -> None:
        """Stops a load; those who waited for it have to ask again."""
        del self.loaded[loading.model.path]
        self.loads.append(Load(loading.model_id, loading.start_ns, now_ns, aborted=True))
        self.in_hand = self._alone = None
        for request in loading.lock:
            if request.state is not State.CANCELLED and not self.submit(request, now_ns):
                self.rejected.append(request)
        if self.in_hand is None:
            self._work(now_ns)

    def _idle(self, loaded: Loaded, now_ns: int) -> None:
        if loaded.is_victim or loaded.keep_alive_ns == 0:
            self._unload(loaded, now_ns)
        elif loaded.keep_alive_ns is not None:
            loaded.expires_ns = now_ns + loaded.keep_alive_ns

    def _unload(self, loaded: Loaded, now_ns: int) -> None:
        del self.loaded[loaded.model.path]
        self.unloads.append(Unload(loaded.model_id, now_ns, loaded.cause))
        if loaded.is_victim:
            recovery_ns = VRAM_RECOVERY_NS if loaded.gpus else 0
            self._wait_until_ns = now_ns + recovery_ns
