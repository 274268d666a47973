"""What users would notice, what causes it, and the numbers that say so: one rule a symptom.

`sim.capacity.diagnosis` names the resource behind the first broken objective. These rules look at the same run the way
its users do: everything freezes, answers stop and resume, the first word is slow. Each fires on evidence in the records
of one run, and each has a scenario in the tests that triggers it and a near miss that must not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reports.document import Document
from reports.source import Detail
from reports.timeseries import Steps
from reports.words import Words
from sim.records import RunRecord
from sim.results.columns import RequestColumns
from sim.results.metrics import RunMetrics
from sim.scenario.model import Objective

SLOW_FIRST_WORD_S = 2.0
"""Where no objective bounds the TTFT: the articles' "first word in two seconds is tolerable"."""

SLOW_WORD_S = 0.1
"""Where no objective bounds the ITL: below ten words a second one reads faster than the answer is typed."""

_FREEZE_MS = 100.0  # a gap that is seen as a stop
_FREEZE_RATIO = 4.0  # of the usual gap
_LONG_FREEZE_MS = 500.0  # one alone is noticed
_MANY_FREEZES = 3
_PREEMPTED_SHARE = 0.01
_SLOWER = 1.5
_WAITING = 1.0
_SATURATED = 0.95
_MOSTLY = 0.5
_SEATS_TAKEN = 0.9
_CROWD = 5
_CALM = 0.6
_CLIENT_SHARE = 0.1
_EVICTED_HITS = 0.6
_SLOT_WAIT_SHARE = 0.05  # of the answers
_IDLE_SEATS = 0.1
_FOLLOW_UPS = 20  # fewer say nothing of the cache


@dataclass(frozen=True, slots=True)
class Symptom:
    """A rule that fired: `key` names its texts (`finding.<key>.*`), `values` fill them in.

    A value is a number, or a pair of a number and how it is written: ms, s, share.
    """

    key: str
    values: dict[str, Any] = field(default_factory=dict)

    def text(self, words: Words, part: str) -> str:
        """Returns the symptom, cause, evidence or cure in words."""
        writers: dict[str, Callable[[Any], str]] = {
            "ms": words.milliseconds, "s": words.duration, "share": words.share, "count": words.count,
        }  # fmt: skip
        shown = {
            name: writers[value[1]](value[0]) if isinstance(value, tuple) else value
            for name, value in self.values.items()
        }
        return words(f"finding.{self.key}.{part}", **shown)


def find_symptoms(detail: Detail, objectives: tuple[Objective, ...], *, prefix_caching: bool = True) -> list[Symptom]:
    """Returns the symptoms of a run, the gravest first.

    Args:
        detail: the run.
        objectives: what is promised: their bounds decide what is slow.
        prefix_caching: whether the server reuses the KV blocks of equal prefixes.
    """
    facts = _Facts.of(detail, objectives, prefix_caching)
    found = [rule(facts) for rule in _RULES]
    return [symptom for symptom in found if symptom is not None]


def find_other_symptoms(detail: Detail, point: Document) -> list[Symptom]:
    """Returns the symptoms of a run of Ollama or of static batches, the gravest first.

    Args:
        detail: the run.
        point: what was found at its load: its `ollama` or `static` part holds the server's own numbers.
    """
    facts = _Facts.of(detail, (), prefix_caching=True)
    found = [rule(facts) for rule in (_errors("refused"), _errors("timed_out"))]
    found += [_ollama_busy(facts, point), _ollama_loads(point), _ollama_slots(point), _static_waste(point)]
    found += [rule(facts) for rule in (_bursts, _client_bound)]
    return [symptom for symptom in found if symptom is not None]


def _ollama_busy(facts: _Facts, point: Document) -> Symptom | None:
    """Errors 503: Ollama's queue was full, as it is when a model has to be loaded first."""
    count = facts.metrics.total.errors.get("rejected", 0)
    if not count or "ollama" not in point:
        return None
    use, share = point["ollama"], count / facts.metrics.total.num_requests
    values = {"count": count, "share": (share, "share"), "loads": use["loads"], "load": (use["load_s"], "s")}
    return Symptom("ollama_busy", values | {"first": (use["first_503_s"], "s"), "last": (use["last_503_s"], "s")})


def _ollama_loads(point: Document) -> Symptom | None:
    """Some answers start very late: their model had to be loaded first."""
    use = point.get("ollama")
    if use is None or (use["wait_for_load"]["share"] or 0.0) < _PREEMPTED_SHARE:
        return None
    wait = use["wait_for_load"]
    values = {"loads": use["loads"], "evictions": use["evictions"], "expired": use["expired"]}
    return Symptom("ollama_loads", values | {"share": (wait["share"], "share"), "load": (use["load_s"], "s")})


def _ollama_slots(point: Document) -> Symptom | None:
    """One answer at a time: requests wait for a slot while the GPU serves another."""
    use = point.get("ollama")
    if use is None or (use["wait_for_slot"]["share"] or 0.0) < _SLOT_WAIT_SHARE:
        return None
    wait = use["wait_for_slot"]
    values = {"slots": use["effective_parallel"], "rate": use["eval_tokens_per_s"], "p95": (wait["p95_ms"], "ms")}
    return Symptom("ollama_slots", values | {"share": (wait["share"], "share")})


def _static_waste(point: Document) -> Symptom | None:
    """The next batch waits for the longest answer of this one, and short answers leave seats idle."""
    use = point.get("static")
    if use is None or (use["idle_seat_share"] or 0.0) < _IDLE_SEATS:
        return None
    values = {"idle": (use["idle_seat_share"], "share"), "padding": (use["padding_share"], "share")}
    return Symptom("static_waste", values | {"waste": (use["kv_waste_share"], "share"), "size": use["mean_size"]})


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the rules look at."""

    metrics: RunMetrics
    run: RunRecord
    steps: Steps
    inside: Any  # the steps that end in the window
    objectives: tuple[Objective, ...]
    prefix_caching: bool

    @classmethod
    def of(cls, detail: Detail, objectives: tuple[Objective, ...], prefix_caching: bool) -> _Facts:
        steps, window = Steps.of(detail.run), detail.metrics.window
        inside = (steps.end_ns >= window.start_ns) & (steps.end_ns <= window.end_ns)
        return cls(detail.metrics, detail.run, steps, inside, objectives, prefix_caching)

    def bound_ms(self, kind: str) -> float:
        """Returns the tightest bound on a latency, or what people find slow."""
        bounds = [1000 * each.value for each in self.objectives if each.metric == kind and each.op == "<="]
        usual = {"ttft": SLOW_FIRST_WORD_S, "itl": SLOW_WORD_S}[kind]
        return min(bounds, default=1000 * usual)

    def latency_ms(self, kind: str, q: float) -> float:
        """Returns a percentile of a latency; 0 where there is none."""
        return self.metrics.total.latency[kind].percentiles[q] or 0.0

    @property
    def slow_first_word(self) -> bool:
        """Whether the first word takes longer than promised or tolerable."""
        return self.latency_ms("ttft", 95) > self.bound_ms("ttft")

    @property
    def decode_ms(self) -> float | None:
        """The median duration of steps that only decode."""
        only = self.inside & (self.steps.prefill == 0) & (self.steps.decodes > 0)
        return float(np.median(self.steps.duration_ns[only])) / 1e6 if only.any() else None

    @property
    def waiting(self) -> float:
        """Requests in the queue on average."""
        return self.metrics.server.waiting.mean or 0.0

    @property
    def running(self) -> float:
        """Requests served at once on average."""
        return self.metrics.server.running.mean or 0.0


def _errors(kind: str) -> Callable[[_Facts], Symptom | None]:
    """Returns the rule for one kind of error: it names itself."""

    def rule(facts: _Facts) -> Symptom | None:
        count = facts.metrics.total.errors.get(kind, 0)
        if not count:
            return None
        share = count / facts.metrics.total.num_requests
        most = (facts.metrics.server.waiting.max or 0.0) + (facts.metrics.server.running.max or 0.0)
        return Symptom(kind, {"count": count, "share": (share, "share"), "inside": most})

    return rule


def _freeze(facts: _Facts) -> Symptom | None:
    """Everything freezes when a long document arrives: steps full of prompt hold up the answers in them."""
    usual = facts.decode_ms
    if usual is None:
        return None
    steps = facts.steps
    duration_ms = steps.duration_ns / 1e6
    longest = max((each.num_prompt_tokens - each.num_cached_tokens for each in facts.run.requests), default=0)
    # A step full of short prompts is a crowd, not a document: the longest prompt must be most of it.
    held_up = facts.inside & (steps.prefill > 0) & (steps.decodes > 0) & (steps.prefill <= 2 * longest)
    frozen = held_up & (duration_ms >= max(_FREEZE_MS, _FREEZE_RATIO * usual))
    if frozen.sum() < _MANY_FREEZES and not (frozen & (duration_ms >= _LONG_FREEZE_MS)).any():
        return None
    worst = int(np.flatnonzero(frozen)[np.argmax(duration_ms[frozen])])
    return Symptom(
        "freeze",
        {
            "count": int(frozen.sum()),
            "longest": (float(duration_ms[worst]), "ms"),
            "usual": (usual, "ms"),
            "answers": int(steps.decodes[worst]),
            "tokens": (int(steps.prefill[worst]), "count"),
            "budget": (facts.run.max_num_batched_tokens, "count"),
        },
    )


def _stop_and_resume(facts: _Facts) -> Symptom | None:
    """Answers stop and resume: preemption takes their KV blocks away, and they are computed again later."""
    columns = RequestColumns.of(facts.run)
    window = facts.metrics.window
    sent = (columns.sent_ns >= window.start_ns) & (columns.sent_ns <= window.end_ns)
    preempted = int((sent & (columns.num_preemptions > 0)).sum())
    if not preempted or preempted < _PREEMPTED_SHARE * facts.metrics.total.num_requests:
        return None
    return Symptom(
        "stop_resume",
        {
            "preemptions": facts.metrics.server.num_preemptions,
            "requests": preempted,
            "share": (preempted / facts.metrics.total.num_requests, "share"),
            "kv": (facts.metrics.server.kv.max, "share"),
            "gap": (facts.metrics.total.latency["itl"].max, "ms"),
        },
    )


def _all_slower(facts: _Facts) -> Symptom | None:
    """All a little slower: every step is longer because more answers share it."""
    steps = facts.steps
    lone = (steps.prefill == 0) & (steps.decodes == 1)
    usual, tail = facts.latency_ms("itl", 50), facts.latency_ms("itl", 99)
    if not lone.any() or not usual or tail >= _FREEZE_RATIO * usual:
        return None
    alone = float(np.median(steps.duration_ns[lone])) / 1e6
    if usual < _SLOWER * alone:
        return None
    values = {"usual": (usual, "ms"), "alone": (alone, "ms"), "ratio": usual / alone, "running": facts.running}
    return Symptom("all_slower", values)


def _saturated(facts: _Facts) -> Symptom | None:
    """TTFT high with good throughput: the server works at full speed, and requests queue for it."""
    server = facts.metrics.server
    if not facts.slow_first_word or (server.busy or 0.0) < _SATURATED or facts.waiting < _WAITING:
        return None
    seats_taken = facts.running >= _SEATS_TAKEN * facts.metrics.max_num_seqs
    if (server.full_step_share or 0.0) < _MOSTLY and not seats_taken:
        return None
    return Symptom(
        "saturated",
        {
            "ttft": (facts.latency_ms("ttft", 95), "ms"),
            "throughput": facts.metrics.throughput.total_tokens or 0.0,
            "busy": (server.busy, "share"),
            "full": (server.full_step_share, "share"),
            "waiting": facts.waiting,
            "running": facts.running,
        },
    )


def _slow_first_word(facts: _Facts) -> Symptom | None:
    """First word slow with fluent typing: time passes before the first token, and none after it."""
    fluent = facts.latency_ms("itl", 95) <= facts.bound_ms("itl")
    if not facts.slow_first_word or not fluent or _saturated(facts) is not None:
        return None
    parts = {part: facts.latency_ms(part, 95) for part in ("queue", "prefill", "client")}
    longest = max(parts, key=lambda part: parts[part])
    cause = longest
    if longest == "queue":
        reasons = facts.metrics.server.tail_wait_reasons[95.0]
        cause = max(("max_num_seqs", "token_budget", "kv_blocks"), key=lambda reason: getattr(reasons, reason))
    return Symptom(
        f"first_word_{cause}",
        {
            "ttft": (facts.latency_ms("ttft", 95), "ms"),
            "itl": (facts.latency_ms("itl", 95), "ms"),
            "part": (parts[longest], "ms"),
            "budget": (facts.run.max_num_batched_tokens, "count"),
            "seats": facts.metrics.max_num_seqs,
            "kv": (facts.metrics.server.kv.max, "share"),
        },
    )


def _bursts(facts: _Facts) -> Symptom | None:
    """Bursts: a crowd waits although the server is idle much of the time."""
    server, queue = facts.metrics.server, facts.latency_ms("queue", 99)
    busy, crowd = server.busy or 0.0, server.waiting.max or 0.0
    if busy >= _CALM or queue < _LONG_FREEZE_MS or crowd < _CROWD:
        return None
    return Symptom(
        "bursts",
        {
            "p50": (facts.latency_ms("ttft", 50), "ms"),
            "p99": (facts.latency_ms("ttft", 99), "ms"),
            "queue": (queue, "ms"),
            "busy": (busy, "share"),
            "crowd": crowd,
        },
    )


def _client_bound(facts: _Facts) -> Symptom | None:
    """Client-bound: requests wait in the client, and the server has room for them."""
    columns = RequestColumns.of(facts.run)
    held = (columns.sent_ns >= facts.metrics.window.start_ns) & (columns.sent_ns <= facts.metrics.window.end_ns)
    if not held.any():
        return None
    queued = np.fromiter((each.queued_ns for each in facts.run.requests), np.int64, len(facts.run.requests))
    in_client_ms = float((columns.sent_ns - queued)[held].mean()) / 1e6
    whole = facts.metrics.total.latency["e2el"].mean or 0.0
    room = (facts.metrics.server.running.max or 0.0) < facts.metrics.max_num_seqs
    if in_client_ms < _CLIENT_SHARE * whole or not whole or facts.waiting >= _WAITING or not room:
        return None
    return Symptom(
        "client_bound",
        {
            "client": (in_client_ms, "ms"),
            "waiting": facts.waiting,
            "running": facts.metrics.server.running.max or 0.0,
            "seats": facts.metrics.max_num_seqs,
        },
    )


def _reread(facts: _Facts) -> Symptom | None:
    """Every turn reads the conversation again: its blocks were evicted before the next message, or are never kept."""
    follow_ups = [each for each in facts.run.requests if each.turn > 0 and each.first_token_ns >= 0]
    asked = sum(each.num_prompt_tokens for each in follow_ups)
    if len(follow_ups) < _FOLLOW_UPS or not asked:
        return None
    hits = sum(each.num_cached_tokens for each in follow_ups) / asked
    if hits >= _EVICTED_HITS:
        return None
    usable = (facts.run.num_gpu_blocks - 1) * facts.run.block_size
    values = {"hits": (hits, "share"), "mean": (asked / len(follow_ups), "count"), "pool": (usable, "count")}
    return Symptom("evicted" if facts.prefix_caching else "caching_off", values)


_RULES: tuple[Callable[[_Facts], Symptom | None], ...] = (
    _errors("never_fits"), _errors("refused"), _errors("rejected"), _errors("timed_out"), _stop_and_resume, _freeze,
    _saturated, _slow_first_word, _reread, _all_slower, _bursts, _client_bound,
)  # fmt: skip
