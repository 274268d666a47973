"""What one run leaves behind: a record a request, a row a step, and the inter-token gaps.

These are filled while the simulation runs, so they hold plain integers and lists; `metrics.py` turns them into numbers
a person reads, `storage.py` writes them to Parquet. All times are integer nanoseconds since the start of the run; -1
means "never happened".
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import chain, starmap
from operator import attrgetter
from struct import Struct
from typing import TypeAlias, overload


class Outcome(IntEnum):
    """How a request ended, seen from its client."""

    UNFINISHED = 0  # still in the server when the run ended
    FINISHED = 1
    REFUSED = 2  # HTTP 400: the prompt (or prompt + max_tokens, in older versions) exceeds max_model_len
    REJECTED = 3  # HTTP 503: an admission limit was reached
    TIMED_OUT = 4  # the client gave up; the server aborted it
    NEVER_FITS = 5  # longer than the whole KV pool: the real server would hold it for ever
    LOST = 6  # the replica that served it failed or was stopped


@dataclass(slots=True)
class RequestRecord:
    """One request as its client saw it.

    `sent_ns` is when the client sent it (after its own semaphore), `queued_ns` when the client wanted to send it,
    `arrival_ns` when the engine got it. TTFT = first_token_ns - sent_ns, E2E = finish_ns - sent_ns,
    queue time = scheduled_ns - arrival_ns, TPOT = (finish_ns - first_token_ns) / (num_output_tokens - 1).
    """

    request_id: int
    class_id: int  # index into RunRecord.class_names
    user_id: int  # -1 in open loops
    turn: int  # 0 for the first request of a conversation
    replica: int
    queued_ns: int
    sent_ns: int
    num_prompt_tokens: int
    max_tokens: int
    arrival_ns: int = -1
    scheduled_ns: int = -1
    first_token_ns: int = -1
    finish_ns: int = -1
    num_output_tokens: int = 0
    num_cached_tokens: int = 0  # prefix-cache hit at first admission
    num_preemptions: int = 0
    engine_ns: int = 0  # its part of the engine's steps, each divided among its tokens
    attempt: int = 0  # 0 for the first try, 1 for the first retry, …
    outcome: Outcome = Outcome.UNFINISHED


REQUEST_FIELDS = tuple(field.name for field in fields(RequestRecord))
"""The columns of a `RequestLog`."""

_Packed: TypeAlias = "array[int]"
_CHUNK = 4096
_WIDTH = len(REQUEST_FIELDS)
_values = attrgetter(*REQUEST_FIELDS)
_OUTCOME = REQUEST_FIELDS.index("outcome")
_row = Struct(f"{_WIDTH}q")


class RequestLog(Sequence[RequestRecord]):
    """The requests of a run in the order in which they arrived, in little memory.

    A record of Python integers takes three times the room of its values, and a run may have a million. So records are
    kept as they are only while something may still happen to them: 4,096 neighbours that have all ended are packed into
    int64 rows when a later one is appended. From then on `log[i]` is a copy: to change it changes nothing.
    """

    __slots__ = ("_chunks", "_open", "_tail")

    def __init__(self, records: Iterable[RequestRecord] = ()) -> None:
        self._chunks: list[list[RequestRecord] | _Packed] = []  # of _CHUNK rows each
        self._open: list[int] = []  # which of them are not packed
        self._tail: list[RequestRecord] = []  # what does not fill a chunk
        self.extend(records)

    @classmethod
    def of_columns(cls, columns: Sequence[array[int]]) -> RequestLog:
        """Returns a log of given columns, in the order of `REQUEST_FIELDS`."""
        log, size = cls(), len(columns[0])
        full = size - size % _CHUNK
        for start in range(0, full, _CHUNK):
            log._chunks.append(_packed(zip(*(column[start : start + _CHUNK] for column in columns), strict=True)))
        log._tail = list(_unpacked(_packed(zip(*(column[full:] for column in columns), strict=True))))
        return log

    def append(self, record: RequestRecord) -> None:
        """Adds a request; its record may be changed until it has ended and another one is added."""
        if len(self._tail) == _CHUNK:
            self._open.append(len(self._chunks))
            self._chunks.append(self._tail)
            self._tail = []
            self._pack()
        self._tail.append(record)

    def extend(self, records: Iterable[RequestRecord]) -> None:
        """Adds requests."""
        for record in records:
            self.append(record)

    def column(self, name: str, start: int = 0, stop: int | None = None) -> array[int]:
        """Returns a field of the requests from `start` to before `stop` (default: of all)."""
        place, stop = REQUEST_FIELDS.index(name), len(self) if stop is None else min(stop, len(self))
        found = _column()
        for first in range(start - start % _CHUNK, stop, _CHUNK):
            chunk = self._chunk(first)
            begin, end = max(0, start - first), min(_CHUNK, stop - first)
            if isinstance(chunk, array):
                found += chunk[begin * _WIDTH + place : end * _WIDTH : _WIDTH]
            else:
                found.extend(getattr(record, name) for record in chunk[begin:end])
        return found

    def __iadd__(self, records: Iterable[RequestRecord]) -> RequestLog:
        self.extend(records)
        return self

    def __len__(self) -> int:
        return len(self._chunks) * _CHUNK + len(self._tail)

    def __iter__(self) -> Iterator[RequestRecord]:
        return chain.from_iterable(
            _unpacked(chunk) if isinstance(chunk, array) else chunk for chunk in chain(self._chunks, (self._tail,))
        )

    @overload
    def __getitem__(self, index: int) -> RequestRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[RequestRecord]: ...
    def __getitem__(self, index: int | slice) -> RequestRecord | list[RequestRecord]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"no request {index} of {len(self)}")
        index %= len(self)
        chunk, row = self._chunk(index), index % _CHUNK
        return next(_unpacked(chunk[row * _WIDTH : (row + 1) * _WIDTH])) if isinstance(chunk, array) else chunk[row]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RequestLog({list(self)!r})"

    def _chunk(self, index: int) -> list[RequestRecord] | _Packed:
        place = index // _CHUNK
        return self._chunks[place] if place < len(self._chunks) else self._tail

    def _pack(self) -> None:
        """Packs the chunks whose requests have all ended. One that lasts keeps its own chunk open, and no other."""
        still_open = []
        for place in self._open:
            chunk = self._chunks[place]
            if all(record.outcome for record in chunk):  # type: ignore[union-attr]
                self._chunks[place] = _packed(map(_values, chunk))
            else:
                still_open.append(place)
        self._open = still_open


def _packed(rows: Iterable[tuple[int, ...]]) -> _Packed:
    return array("q", b"".join(starmap(_row.pack, rows)))


def _unpacked(rows: _Packed) -> Iterator[RequestRecord]:
    for row in _row.iter_unpack(rows):
        values = list(row)
        values[_OUTCOME] = Outcome(values[_OUTCOME])
        yield RequestRecord(*values)


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class StepLog:
    """One row an engine step; every column is an int64 array of the same length."""

    replica: array[int] = field(default_factory=_column)
    start_ns: array[int] = field(default_factory=_column)
    end_ns: array[int] = field(default_factory=_column)
    num_prefill_tokens: array[int] = field(default_factory=_column)  # tokens of chunks longer than one token
    num_decodes: array[int] = field(default_factory=_column)  # requests that got exactly one token
    num_running: array[int] = field(default_factory=_column)
    num_waiting: array[int] = field(default_factory=_column)
    num_free_blocks: array[int] = field(default_factory=_column)
    num_preempted: array[int] = field(default_factory=_column)  # since the row before: a step without tokens has none
    prefix_queries: array[int] = field(default_factory=_column)  # prompt tokens looked up at admission in this step
    prefix_hits: array[int] = field(default_factory=_column)  # of those, found in the cache


@dataclass(slots=True)
class ItlLog:
    """Inter-token gaps, run-length coded: `count` tokens of `class_id` came out at `end_ns`, `gap_ns` after the last.

    One row a step and class where all decodes advance together, a few more after a preemption: exact percentiles
    without a row a token.
    """

    end_ns: array[int] = field(default_factory=_column)
    gap_ns: array[int] = field(default_factory=_column)
    class_id: array[int] = field(default_factory=_column)
    count: array[int] = field(default_factory=_column)

    def add(self, end_ns: int, gaps: Mapping[tuple[int, int], int]) -> None:
        """Adds the gaps before the tokens that came out at `end_ns`: (class, nanoseconds) -> tokens."""
        for (class_id, gap_ns), count in gaps.items():
            self.end_ns.append(end_ns)
            self.gap_ns.append(gap_ns)
            self.class_id.append(class_id)
            self.count.append(count)


@dataclass(slots=True)
class PreemptionLog:
    """One row a preemption: when a request lost its KV blocks, and when it was scheduled again (-1: never)."""

    request_id: array[int] = field(default_factory=_column)
    start_ns: array[int] = field(default_factory=_column)
    end_ns: array[int] = field(default_factory=_column)


@dataclass(frozen=True, slots=True)
class OllamaResponse:
    """The timing fields of one complete answer of Ollama, by its own names; durations are nanoseconds.

    `total_duration` runs from the request's receipt; `load_duration` ends when it has a loaded model (the queue before
    that is in it); the wait for a slot is what `total_duration` leaves beside the other three.
    """

    request_id: int
    model_id: int  # index into OllamaLog.models
    total_duration: int
    load_duration: int
    prompt_eval_count: int  # tokens found in the slot's cache included
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int  # after the first token
    prompt_eval_cached_count: int | None  # None: the release does not tell (before 0.33.3)

    @property
    def slot_wait(self) -> int:
        """Nanoseconds in the queue of NUM_PARALLEL."""
        return self.total_duration - self.load_duration - self.prompt_eval_duration - self.eval_duration


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A model that an Ollama server was asked for, as it is loaded."""

    name: str
    num_parallel: int
    num_ctx: int
    num_batch: int
    context_bytes: int
    gpu_bytes: int
    ram_bytes: int
    num_gpu_layers: int
    num_layers: int


@dataclass(slots=True)
class OllamaLog:
    """What an Ollama server did beside its batches."""

    models: tuple[OllamaModel, ...]
    responses: list[OllamaResponse] = field(default_factory=list)
    loads: list[tuple[int, int, int, bool]] = field(default_factory=list)  # model, start_ns, end_ns, aborted
    unloads: list[tuple[int, int, str]] = field(default_factory=list)  # model, time_ns, cause
    rejected_ns: list[int] = field(default_factory=list)  # when requests were answered 503
    num_shifts: int = 0  # context shifts
    num_truncated: int = 0  # requests whose prompt was cut


@dataclass(slots=True)
class StaticLog:
    """What a server with static batches did: one row a batch."""

    reservation: str
    start_ns: array[int] = field(default_factory=_column)
    end_ns: array[int] = field(default_factory=_column)
    size: array[int] = field(default_factory=_column)  # requests in it
    num_output_tokens: array[int] = field(default_factory=_column)  # generated
    num_seat_steps: array[int] = field(default_factory=_column)  # decode steps x requests: what was computed
    num_prompt_tokens: array[int] = field(default_factory=_column)
    num_padded_tokens: array[int] = field(default_factory=_column)  # prompt tokens with the padding to the longest
    reserved_token_ns: array[int] = field(default_factory=_column)  # reserved KV tokens x time
    used_token_ns: array[int] = field(default_factory=_column)  # of those, that hold a token some answer still needs


@dataclass(slots=True)
class FleetLog:
    """What happened to the replicas of a server that has several.

    `events` are (replica, time_ns, what) in order of time, `what` being start, ready, drain, stop or fail; `rerouted`
    are (request_id, time_ns) of requests whose replica failed and that the router sent to another one.
    """

    events: list[tuple[int, int, str]] = field(default_factory=list)
    rerouted: list[tuple[int, int]] = field(default_factory=list)

    def note(self, replica: int, time_ns: int, what: str) -> None:
        """Adds an event."""
        self.events.append((replica, time_ns, what))

    def up(self, end_ns: int) -> list[tuple[int, int, int]]:
        """Returns the stretches (replica, from_ns, to_ns) in which a replica served, draining included."""
        since: dict[int, int] = {}
        found = []
        for replica, time_ns, what in self.events:
            if what == "ready":
                since[replica] = time_ns
            elif what in ("stop", "fail") and replica in since:
                found.append((replica, since.pop(replica), time_ns))
        return sorted([*found, *((replica, start_ns, end_ns) for replica, start_ns in since.items())])


@dataclass(slots=True)
class StepSplit:
    """What every priced step is made of, one row a step in the order of pricing.

    Attributes:
        source: the model of step times.
        with_prompts: 1 where the step has prompt chunks, 0 where it only decodes.
        parts: part -> nanoseconds; columns of one length.
    """

    source: str
    with_prompts: array[int] = field(default_factory=_column)
    parts: dict[str, array[int]] = field(default_factory=dict)


@dataclass(slots=True)
class RunRecord:
    """Everything one simulated run recorded."""

    class_names: tuple[str, ...]
    num_gpu_blocks: int  # per replica, the null block included
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_replicas: int
    calibrated: bool
    end_ns: int = 0  # when the last event happened
    arrivals_end_ns: int = 0  # when the workload stopped sending new work (= end_ns for finite workloads)
    requests: RequestLog = field(default_factory=RequestLog)
    steps: StepLog = field(default_factory=StepLog)
    itl: ItlLog = field(default_factory=ItlLog)
    preemptions: PreemptionLog = field(default_factory=PreemptionLog)
    warnings: list[str] = field(default_factory=list)  # said once each, for the person who reads the result
    ollama: OllamaLog | None = None  # of servers of this kind
    static: StaticLog | None = None
    fleet: FleetLog | None = None  # of several replicas
    step_split: StepSplit | None = None  # what steps are made of, where that was asked for
