"""Sends a workload to a real server in real time, and keeps the records that a simulation keeps.

The workload is the simulation's own (`sim.workload`): it says what to send when and is told how each request ended, so
that users think, semaphores hold and follow-up turns repeat real answers, exactly as simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from calibrate.http_client import Completion, HttpClient, RequestError
from calibrate.token_text import TokenText
from sim.records import Outcome, RequestRecord, RunRecord
from sim.workload.client import ClientRequest, Workload

_GIVE_UP_AFTER = 5  # failures in a row: a server that has gone away fails everything
_LATE_NS = 50_000_000


@dataclass(slots=True)
class LiveRun:
    """A run against a real server.

    Attributes:
        record: requests and token gaps, times in nanoseconds since the run's start; no steps.
        start_ns: the run's start on the client's monotonic clock.
        names: the request ids that were sent, in the order of the records.
        gaps_ns: by request id, the gaps between its tokens.
        errors: what went wrong -> how often.
        stopped: why the run ended before its workload did, or None.
    """

    record: RunRecord
    start_ns: int = 0
    names: list[str] = field(default_factory=list)
    gaps_ns: dict[str, list[int]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None

    @property
    def num_finished(self) -> int:
        """Requests answered in full."""
        return sum(request.outcome is Outcome.FINISHED for request in self.record.requests)


@dataclass(slots=True)
class Budget:
    """How many requests may still be sent, over all runs that share it; None: any number."""

    num_left: int | None = None

    def take(self) -> bool:
        """Takes one; returns whether there was one."""
        if self.num_left is None:
            return True
        if self.num_left <= 0:
            return False
        self.num_left -= 1
        return True


class LiveDriver:
    """Drives one server.

    Args:
        client: a connected client.
        budget: requests that may be sent.
        want_answers: ask the server for the token ids it generates, for prompts that repeat answers.
        on_progress: called with (requests ended, requests in flight) after each end.
    """

    def __init__(
        self,
        client: HttpClient,
        *,
        budget: Budget | None = None,
        want_answers: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.client = client
        self.budget = budget or Budget()
        self.want_answers = want_answers
        self.on_progress = on_progress

    async def run(self, workload: Workload, text: TokenText, name: str, *, limit_s: float | None = None) -> LiveRun:
        """Sends the workload until it is over, the budget is used up, Ctrl-C comes or the server has gone away.

        Args:
            workload: what to send.
            text: what its token streams say.
            name: the beginning of every request id.
            limit_s: after so long, nothing more is sent; what is in flight is waited for.
        """
        run = _Run(self, workload, text, name, limit_s)
        with _interruptible(run.interrupt):
            await run.until_over()
        return run.result()


class _Run:
    """The state of one run."""

    def __init__(
        self, driver: LiveDriver, workload: Workload, text: TokenText, name: str, limit_s: float | None
    ) -> None:
        self.driver = driver
        self.client = driver.client
        self.workload = workload
        self.text = text
        self.name = name
        self.start_ns = self.client.clock_ns()
        self.limit_ns = None if limit_s is None else round(1e9 * limit_s)
        record = RunRecord(
            class_names=workload.class_names,
            num_gpu_blocks=0,
            block_size=0,
            max_num_seqs=0,
            max_num_batched_tokens=0,
            num_replicas=1,
            calibrated=True,
        )
        self.live = LiveRun(record, self.start_ns)
        self.tasks: set[asyncio.Task[None]] = set()
        self.something_ended = asyncio.Event()
        self.sending = True
        self.num_failures = 0  # in a row
        self.num_ended = 0
        self.latest_ns = 0

    def _name_of(self, request: ClientRequest) -> str:
        return f"{self.name}-{request.request_id}"

    def now_ns(self) -> int:
        return self.client.clock_ns() - self.start_ns

    def interrupt(self) -> None:
        self.stop("interrupted", cancel=True)

    def stop(self, reason: str | None, *, cancel: bool = False) -> None:
        """Sends nothing more; what is in flight is waited for, or given up."""
        self.sending = False
        if self.live.stopped is None:
            self.live.stopped = reason
        if cancel:
            for task in self.tasks:
                task.cancel()
        self.something_ended.set()

    async def until_over(self) -> None:
        while self.sending or self.tasks:
            self.something_ended.clear()
            if self.sending:
                self._send_due()
            next_ns = self.workload.next_send_ns() if self.sending else None
            if next_ns is None and not self.tasks:
                return
            timeout_s = None if next_ns is None else max(0, next_ns - self.now_ns()) / 1e9
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.something_ended.wait(), timeout_s)

    def result(self) -> LiveRun:
        record = self.live.record
        record.end_ns = max((r.finish_ns for r in record.requests), default=0)
        record.arrivals_end_ns = max((r.sent_ns for r in record.requests), default=0)
        if self.latest_ns > _LATE_NS:
            record.warnings.append(f"the client fell up to {self.latest_ns / 1e6:.0f} ms behind its sending times")
        record.warnings += [f"{count} requests: {error}" for error, count in self.live.errors.items()]
        return self.live

    def _send_due(self) -> None:
        now_ns = self.now_ns()
        if self.limit_ns is not None and now_ns >= self.limit_ns:
            self.stop(None)
            return
        for request in self.workload.pop_due(now_ns):
            if not self.driver.budget.take():
                self.stop("the number of requests is used up")
                return
            task = asyncio.create_task(self._serve(request))
            self.tasks.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.something_ended.set()

    async def _serve(self, request: ClientRequest) -> None:
        sent_ns = self.now_ns()
        self.latest_ns = max(self.latest_ns, sent_ns - request.sent_ns)
        record = RequestRecord(
            request_id=request.request_id,
            class_id=request.class_id,
            user_id=request.user_id,
            turn=request.turn,
            replica=0,
            queued_ns=request.queued_ns,
            sent_ns=sent_ns,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.output_tokens,
            attempt=request.attempt,
        )
        self.live.record.requests.append(record)
        self.live.names.append(self._name_of(request))
        completion, error = Completion(), None
        try:
            async with asyncio.timeout(None if request.timeout_ns is None else request.timeout_ns / 1e9):
                await self._complete(request, completion)
            record.outcome = Outcome.FINISHED
        except TimeoutError:
            record.outcome = Outcome.TIMED_OUT
        except RequestError as failure:
            record.outcome, error = _outcome_of(failure), failure
        finally:
            self._close(request, record, completion, error)

    async def _complete(self, request: ClientRequest, completion: Completion) -> None:
        await self.client.complete(
            self.text.prompt(request.prompt),
            request.output_tokens,
            name=self._name_of(request),
            priority=request.priority,
            want_token_ids=self.driver.want_answers,
            completion=completion,
        )

    def _close(
        self, request: ClientRequest, record: RequestRecord, completion: Completion, error: RequestError | None
    ) -> None:
        times = [time_ns - self.start_ns for time_ns in completion.token_ns]
        record.finish_ns = times[-1] if times and record.outcome is Outcome.FINISHED else self.now_ns()
        record.num_output_tokens = len(times)
        record.num_cached_tokens = completion.num_cached_tokens or 0
        if times:
            record.first_token_ns = times[0]
        self.live.gaps_ns[self._name_of(request)] = [b - a for a, b in itertools.pairwise(times)]
        itl = self.live.record.itl
        for before, after in itertools.pairwise(times):
            itl.end_ns.append(after)
            itl.gap_ns.append(after - before)
            itl.class_id.append(record.class_id)
            itl.count.append(1)
        if completion.token_ids:
            self.text.set_answer(request.output_stream, completion.token_ids)
        self._judge(record, completion, request, error)
        self.workload.on_done(request, record.outcome, record.num_output_tokens, self.now_ns())
        self.num_ended += 1
        if self.driver.on_progress is not None:
            self.driver.on_progress(self.num_ended, len(self.tasks) - 1)

    def _judge(
        self, record: RequestRecord, completion: Completion, request: ClientRequest, error: RequestError | None
    ) -> None:
        """Counts errors; ends the run when the server has gone away, or will never answer another way."""
        if error is None:
            self.num_failures = 0
            if completion.num_closed:
                self.live.errors["sent again, as the server had closed the connection before; the client was late"] += 1
            if record.outcome is Outcome.FINISHED and record.num_output_tokens != request.output_tokens:
                got = completion.num_tokens if completion.num_tokens is not None else record.num_output_tokens
                kind = "fewer" if got < request.output_tokens else "as many"
                self.live.errors[f"{kind} tokens were generated than asked for, or they came several at a time"] += 1
            return
        self.live.errors[str(error)] += 1
        if error.status in (401, 403, 404):
            self.stop(f"the server refuses all requests: {error}")
            return
        self.num_failures += 1
        if self.num_failures >= _GIVE_UP_AFTER and error.status not in (429, 503):
            self.stop(f"{self.num_failures} requests failed in a row, the last with: {error}")


def _outcome_of(error: RequestError) -> Outcome:
    """Returns how a request ended for its client; one that broke off without an answer stays unfinished."""
    if error.status in (429, 503):
        return Outcome.REJECTED
    if error.status is not None and 400 <= error.status < 500:
        return Outcome.REFUSED
    return Outcome.UNFINISHED


class ExactAnswers:
    """A workload whose clients ask for exactly the tokens that the model is to generate: nothing else can be arranged
    with a real model, so that both sides are sent the same.

    Args:
        workload: the original.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    @property
    def class_names(self) -> tuple[str, ...]:
        """See `Workload`."""
        return self._workload.class_names

    @property
    def warnings(self) -> tuple[str, ...]:
        """See `Workload`."""
        return self._workload.warnings

    @property
    def arrivals_end_ns(self) -> int:
        """See `Workload`."""
        return self._workload.arrivals_end_ns

    def next_send_ns(self) -> int | None:
        """See `Workload`."""
        return self._workload.next_send_ns()

    def pop_due(self, now_ns: int) -> list[ClientRequest]:
        """Returns the requests due, each with max_tokens as long as its answer."""
        return [replace(request, max_tokens=request.output_tokens) for request in self._workload.pop_due(now_ns)]

    def on_done(self, request: ClientRequest, outcome: Outcome, num_output_tokens: int, now_ns: int) -> None:
        """See `Workload`."""
        self._workload.on_done(request, outcome, num_output_tokens, now_ns)


@contextlib.contextmanager
def _interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Turns Ctrl-C and the TERM signal into a call while inside; where they cannot be caught, all stays as it was."""
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows
                loop.add_signal_handler(number, stop)
                before[number] = handler
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)  # to the default, whatever was there
            signal.signal(number, handler)
