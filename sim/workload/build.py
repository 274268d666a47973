"""From a scenario to a workload that sends its requests."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from sim.errors import UserError
from sim.scenario.model import (
    AnyWorkload,
    ClosedLoopWorkload,
    ConversationClass,
    Fixed,
    GammaArrivals,
    OpenLoopWorkload,
    RequestClass,
    Scenario,
    Session,
    SingleRequestClass,
    TraceWorkload,
    UsersWorkload,
)
from sim.scenario.model import Retries as RetriesModel
from sim.workload.arrivals import Peaks, RateCurve, arrivals_ns, at_once, unit_times
from sim.workload.client import Retries, Workload
from sim.workload.closed_loop import ClosedLoop
from sim.workload.conversation import UserClass
from sim.workload.open_loop import OpenLoop
from sim.workload.random import random_stream
from sim.workload.replay import ReplayedRequests, replay_times
from sim.workload.requests import DrawnRequests, OneShotClass
from sim.workload.sampling import time_sampler, token_sampler
from sim.workload.sessions import Sessions
from sim.workload.streams import SharedPrefix
from sim.workload.trace import Trace
from sim.workload.traces import TraceFormat, read_trace
from sim.workload.users import Habits, Users

_VARIED_BY_KIND = {
    "users": "users",
    "open_loop": "request_rate",
    "closed_loop": "max_concurrency",
    "trace": "request_rate",
}


def build_workload(
    scenario: Scenario, seed: int, load: float | None = None, max_model_len: int | None = None
) -> Workload:
    """Returns the workload of a scenario at one load.

    Two workloads with the same seed send the same requests, whatever the load: user 7 holds the same conversations
    among ten users and among a hundred, and the k-th request of an open loop is the same at every rate.

    Args:
        scenario: what to send.
        seed: names the random numbers.
        load: the value of what `search.vary` names; without a search, the users, the request rate (also of a trace) or
            the concurrency, by the kind of workload. None: what the scenario says.
        max_model_len: the server's, where conversations end at the latest; None: the scenario's flag, if it has one.

    Raises:
        UserError: a number that the workload needs is neither in the scenario nor the load, or a file cannot be read.
    """
    workload, trace_rate = scenario.workload, None
    if load is not None:
        vary = scenario.search.vary if scenario.search else _VARIED_BY_KIND[workload.kind]
        if isinstance(workload, TraceWorkload) and vary == "request_rate":
            trace_rate = load
        else:
            workload = _at_load(workload, vary, load)
    match workload:
        case UsersWorkload():
            return _users(workload, scenario, seed, max_model_len or scenario.server.flags.max_model_len)
        case OpenLoopWorkload():
            return _open_loop(workload, scenario, seed)
        case ClosedLoopWorkload():
            return _closed_loop(workload, scenario, seed)
        case TraceWorkload():
            return _replay(workload, scenario, trace_rate)


def _at_load(workload: AnyWorkload, vary: str, load: float) -> AnyWorkload:
    """Returns the workload with the varied quantity set."""
    match workload, vary:
        case UsersWorkload(), "users":
            return workload.model_copy(update={"users": round(load)})
        case UsersWorkload(classes=classes), "context_tokens":
            return workload.model_copy(update={"classes": tuple(_with_context(item, round(load)) for item in classes)})
        case OpenLoopWorkload() | ClosedLoopWorkload(), "request_rate":
            return workload.model_copy(update={"request_rate": load})
        case ClosedLoopWorkload() | TraceWorkload(), "max_concurrency":
            return workload.model_copy(update={"max_concurrency": round(load)})
    raise UserError(f"search.vary: {vary} is nothing that a workload of kind {workload.kind} has")


def _with_context(item: ConversationClass, context_tokens: int) -> ConversationClass:
    """Returns the class with first prompts of this length, shared prefixes included."""
    own_tokens = max(1, context_tokens - item.num_shared_tokens)
    return item.model_copy(update={"first_prompt_tokens": Fixed(value=own_tokens)})


def _users(workload: UsersWorkload, scenario: Scenario, seed: int, max_model_len: int | None) -> Users:
    end_ns = _end_ns(scenario)
    if workload.users is None:
        raise UserError("workload.users: missing; give the number of users, or let the search vary it")
    if end_ns is None:
        raise UserError("run.duration: missing; users never end by themselves")
    habits = Habits(
        end_ns=end_ns,
        timeout_ns=_optional_ns(workload.client_timeout),
        retries=_retries(workload.retries),
        team_size=workload.team_size,
        sessions=_sessions(workload.session, scenario),
        ramp_up_ns=_optional_ns(workload.ramp_up),
        under_way=workload.start == "under_way",
    )
    classes = [_user_class(item, workload, scenario, max_model_len) for item in workload.classes]
    return Users(classes, workload.users, habits, seed)


def _user_class(
    item: ConversationClass, workload: UsersWorkload, scenario: Scenario, max_model_len: int | None
) -> UserClass:
    pause = item.think_time if workload.new_conversation_after is None else workload.new_conversation_after
    limits = [limit for limit in (item.context_limit_tokens, max_model_len) if limit is not None]
    return UserClass(
        name=item.name,
        share=item.share,
        first_prompt_tokens=token_sampler(item.first_prompt_tokens, scenario),
        next_prompt_tokens=token_sampler(item.next_prompt_tokens, scenario),
        output_tokens=token_sampler(item.output_tokens, scenario),
        turns=token_sampler(item.turns, scenario),
        think_ns=time_sampler(item.think_time, scenario),
        pause_ns=time_sampler(pause, scenario),
        context_limit_tokens=min(limits, default=None),
        max_tokens=item.max_tokens,
        prefixes=_prefixes(item),
        priority=item.priority,
    )


def _open_loop(workload: OpenLoopWorkload, scenario: Scenario, seed: int) -> OpenLoop:
    end_ns, number = _end_ns(scenario), workload.num_requests
    if workload.arrivals == "all_at_once" or workload.request_rate == math.inf:
        if number is None:
            raise UserError("workload.num_requests: missing; requests that arrive all at once need a number")
        arrivals = at_once(number)
    elif workload.request_rate is None:
        raise UserError("workload.request_rate: missing; give requests per second, or let the search vary it")
    elif number is None and end_ns is None:
        raise UserError("run.duration: missing; give it or workload.num_requests")
    else:
        steps = tuple((change.after, change.factor) for change in workload.rate_over_time or ())
        peaks = None
        if workload.peaks is not None:
            peaks = Peaks(workload.peaks.factor, workload.peaks.duration, workload.peaks.every)
        curve = RateCurve(workload.request_rate, steps, peaks)
        times = unit_times(random_stream(seed, "arrivals"), _burstiness(workload), number)
        arrivals = arrivals_ns(times, curve, end_ns)
    source = DrawnRequests(
        _one_shot_classes(workload.classes, scenario), arrivals, seed, _optional_ns(workload.client_timeout)
    )
    return OpenLoop(source, _names(workload.classes), _retries(workload.retries), end_ns, _unshared(workload.classes))


def _burstiness(workload: OpenLoopWorkload) -> float:
    if isinstance(workload.arrivals, GammaArrivals):
        return workload.arrivals.burstiness
    return math.inf if workload.arrivals == "constant" else 1.0


def _closed_loop(workload: ClosedLoopWorkload, scenario: Scenario, seed: int) -> Workload:
    end_ns = _end_ns(scenario)
    if workload.request_rate == math.inf:
        arrivals = at_once(workload.num_requests)
    else:
        times = unit_times(random_stream(seed, "arrivals"), workload.burstiness, workload.num_requests)
        arrivals = arrivals_ns(times, RateCurve(workload.request_rate), end_ns)
    source = DrawnRequests(
        _one_shot_classes(workload.classes, scenario), arrivals, seed, _optional_ns(workload.client_timeout)
    )
    names, warnings = _names(workload.classes), _unshared(workload.classes)
    if workload.max_concurrency is None:
        return OpenLoop(source, names, end_ns=end_ns, warnings=warnings)
    return ClosedLoop(source, names, workload.max_concurrency, end_ns, warnings)


def _one_shot_classes(items: tuple[SingleRequestClass, ...], scenario: Scenario) -> list[OneShotClass]:
    return [
        OneShotClass(
            name=item.name,
            share=item.share,
            prompt_tokens=token_sampler(item.prompt_tokens, scenario),
            output_tokens=token_sampler(item.output_tokens, scenario),
            max_tokens=item.max_tokens,
            prefixes=_prefixes(item),
            priority=item.priority,
        )
        for item in items
    ]


def _replay(workload: TraceWorkload, scenario: Scenario, rate_per_s: float | None) -> Workload:
    path = scenario.resolve(workload.path)
    trace = _trace(path, workload.format)
    if workload.limit is not None:
        trace = trace.first(workload.limit)
    scale = workload.time_scale / workload.rate_scale
    if rate_per_s is not None:
        span_s = (int(trace.sent_ns[-1]) - int(trace.sent_ns[0])) / 1e9
        if not span_s:
            raise UserError(f"{path}: all requests come at the same time, so they cannot be stretched to a rate")
        scale = (len(trace) - 1) / span_s / rate_per_s
    times = replay_times(trace, scale, behind_a_cap=workload.max_concurrency is not None)
    source = ReplayedRequests(trace, times, _optional_ns(workload.client_timeout), workload.priority)
    names, end_ns = trace.class_names or (workload.class_name,), _end_ns(scenario)
    if workload.max_concurrency is None:
        return OpenLoop(source, names, end_ns=end_ns, warnings=trace.warnings)
    return ClosedLoop(source, names, workload.max_concurrency, end_ns, trace.warnings)


def _trace(path: Path, trace_format: TraceFormat | None) -> Trace:
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    return _cached_trace(path, trace_format, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2)
def _cached_trace(path: Path, trace_format: TraceFormat | None, _mtime_ns: int, _size: int) -> Trace:
    """Reads a trace once for all runs of a search; a changed file is read anew."""
    return read_trace(path, trace_format)


def _prefixes(item: RequestClass) -> tuple[SharedPrefix, ...]:
    return tuple(
        SharedPrefix(
            text=f"name {prefix.name}" if prefix.name else f"class {item.name} {place}",
            tokens=prefix.tokens,
            scope=prefix.scope,
        )
        for place, prefix in enumerate(item.shared_prefix)
        if prefix.tokens
    )


def _unshared(items: tuple[SingleRequestClass, ...]) -> tuple[str, ...]:
    """Says which prefixes nobody shares, because only users have teams and come back."""
    return tuple(
        f"class {item.name!r}: a shared prefix of scope {prefix.scope!r} is shared by no two requests here: "
        "only a workload of kind users has users and teams"
        for item in items
        for prefix in item.shared_prefix
        if prefix.scope in ("team", "user")
    )


def _names(items: tuple[RequestClass, ...]) -> tuple[str, ...]:
    return tuple(item.name for item in items)


def _sessions(session: Session | None, scenario: Scenario) -> Sessions | None:
    if session is None:
        return None
    return Sessions(time_sampler(session.length, scenario), time_sampler(session.pause, scenario))


def _retries(retries: RetriesModel | None) -> Retries:
    return Retries() if retries is None else Retries(retries.max, round(retries.backoff * 1e9))


def _end_ns(scenario: Scenario) -> int | None:
    return _optional_ns(scenario.run.duration)


def _optional_ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
