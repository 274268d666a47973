"""What must hold between the keys of a scenario. Each check yields the path at fault and a message."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sim.scenario.bounds import MOST_REQUESTS, MOST_SECONDS, MOST_USERS
from sim.scenario.distributions import Empirical
from sim.scenario.explain import suggestion
from sim.scenario.fleet_checks import check_fleet
from sim.scenario.model import Scenario
from sim.scenario.part import Part
from sim.scenario.problems import Path
from sim.scenario.source import is_empty_file
from sim.scenario.units import format_duration
from sim.scenario.workload import (
    ConversationClass,
    OpenLoopWorkload,
    RequestClass,
    SingleRequestClass,
    TraceWorkload,
    UsersWorkload,
)

Finding = tuple[Path, str]

_VARIED = {
    "users": ("users",),
    "request_rate": ("open_loop", "closed_loop", "trace"),
    "max_concurrency": ("closed_loop", "trace"),
    "context_tokens": ("users",),
}


def cross_check(scenario: Scenario) -> Iterator[Finding]:
    """Yields everything that the scenario alone shows to be impossible; models and GPUs are not looked up here."""
    yield from _check_flags(scenario)
    yield from _check_ollama(scenario)
    yield from check_fleet(scenario.server)
    yield from _check_classes(scenario)
    yield from _check_load(scenario)
    yield from _check_times(scenario)
    yield from _check_search(scenario)
    if not isinstance(scenario.workload, TraceWorkload):  # a trace brings its own: they are known once it is read
        yield from check_class_names(scenario, [item.name for item in request_classes(scenario)])
    yield from _check_files(scenario)
    max_model_len = scenario.server.flags.max_model_len
    if max_model_len is not None and scenario.server.kind != "ollama":  # Ollama cuts what is too long
        yield from check_lengths(scenario, max_model_len)


def check_lengths(scenario: Scenario, max_model_len: int) -> Iterator[Finding]:
    """Yields the request classes none of whose requests fits in `max_model_len` tokens."""
    limit = f"max_model_len is {max_model_len}"
    for index, item in enumerate(request_classes(scenario)):
        path: Path = ("workload", "classes", index)
        prompt = item.num_shared_tokens + math.ceil(smallest_prompt(item))
        if item.max_tokens is not None and item.max_tokens > max_model_len:
            yield (*path, "max_tokens"), f"every request would be refused; got {item.max_tokens}; {limit}"
        elif prompt + 1 > max_model_len:
            least = f"its shortest prompt has {prompt} tokens and needs room for one more"
            yield path, f"no request of class {item.name!r} can ever fit: {least}; {limit}"
    search = scenario.search
    if search is not None and search.vary == "context_tokens" and search.from_ + 1 > max_model_len:
        yield ("search", "from"), f"no conversation can start at this context; got {search.from_:g}; {limit}"


def request_classes(scenario: Scenario) -> tuple[RequestClass, ...]:
    """Returns the classes of the workload; a trace has none."""
    return () if isinstance(scenario.workload, TraceWorkload) else scenario.workload.classes


def smallest_prompt(item: RequestClass) -> float:
    """Returns the fewest tokens a prompt of the class has after the shared prefix."""
    if isinstance(item, ConversationClass):
        return item.first_prompt_tokens.smallest()
    return item.prompt_tokens.smallest() if isinstance(item, SingleRequestClass) else 0.0


def _check_flags(scenario: Scenario) -> Iterator[Finding]:
    """The combinations that `vllm serve` refuses at start."""
    flags = scenario.server.flags
    here: Path = ("server", "flags")
    budget, seqs, length = flags.max_num_batched_tokens, flags.max_num_seqs, flags.max_model_len
    if budget is not None and seqs is not None and budget < seqs:
        what = "must be at least max_num_seqs, or running requests could not all advance"
        yield (*here, "max_num_batched_tokens"), f"{what}; got {budget}; max_num_seqs is {seqs}"
    if budget is not None and length is not None and flags.enable_chunked_prefill is False and budget < length:
        what = "must be at least max_model_len when enable_chunked_prefill is false"
        yield (*here, "max_num_batched_tokens"), f"{what}; got {budget}; max_model_len is {length}"
    threshold = flags.long_prefill_token_threshold
    if threshold is not None and length is not None and threshold > length:
        what = "must not exceed max_model_len"
        yield (*here, "long_prefill_token_threshold"), f"{what}; got {threshold}; max_model_len is {length}"


def _check_ollama(scenario: Scenario) -> Iterator[Finding]:
    """What only matters when the server is Ollama's."""
    server = scenario.server
    if server.kind != "ollama":
        return
    if "version" in server.model_fields_set and "version" not in server.ollama.model_fields_set:
        what = "is a release of vLLM; that of Ollama is server.ollama.version"
        yield ("server", "version"), f"{what}; got {server.version!r}"
    known = [item.name for item in request_classes(scenario)]
    taken: set[str] = set()
    for index, model in enumerate(server.ollama.models):
        for place, name in enumerate(model.classes):
            path: Path = ("server", "ollama", "models", index, "classes", place)
            if known and name not in known:
                yield path, f"no such request class; got {name!r}; {suggestion(name, known, noun='classes')}"
            if name in taken:
                yield path, f"a class asks for one model; got {name!r} a second time"
            taken.add(name)


def _check_classes(scenario: Scenario) -> Iterator[Finding]:
    classes = request_classes(scenario)
    here: Path = ("workload", "classes")
    if classes and not any(item.share for item in classes):
        yield here, "every share is 0; at least one class needs a share above 0"
    for index, item in enumerate(classes):
        names = [other.name for other in classes[:index]]
        if item.name in names:
            first = names.index(item.name)
            yield (*here, index, "name"), f"duplicate class name; got {item.name!r}, also the name of class {first}"
        yield from (((*here, index, key), message) for key, message in _check_class(item))


def _check_class(item: RequestClass) -> Iterator[tuple[str, str]]:
    """Yields key and message for what one class gets wrong."""
    if getattr(item.output_tokens, "value", 1) < 1:
        yield "output_tokens", f"an answer has at least 1 token; got {item.output_tokens.smallest():g}"
    prompt = "first_prompt_tokens" if isinstance(item, ConversationClass) else "prompt_tokens"
    if item.num_shared_tokens == 0 and getattr(getattr(item, prompt, None), "value", 1) < 1:
        yield prompt, f"a prompt has at least 1 token; got {smallest_prompt(item):g}"
    if isinstance(item, ConversationClass):
        if item.turns.smallest() < 1 and getattr(item.turns, "value", 1) < 1:
            yield "turns", f"a conversation has at least 1 turn; got {item.turns.smallest():g}"
        limit, least = item.context_limit_tokens, item.num_shared_tokens + math.ceil(smallest_prompt(item))
        if limit is not None and least > limit:
            yield "context_limit_tokens", f"below the shortest first prompt ({least} tokens); got {limit}"


def _check_load(scenario: Scenario) -> Iterator[Finding]:
    """The load must come from the workload or from the search."""
    workload = scenario.workload
    varied = scenario.search.vary if scenario.search else None
    if varied is not None and workload.kind not in _VARIED[varied]:
        return  # said by the check of the search
    if isinstance(workload, UsersWorkload) and workload.users is None and varied != "users":
        yield ("workload", "users"), "missing key; give the number of users, or let the search vary it"
    if not isinstance(workload, OpenLoopWorkload):
        return
    at_once = workload.arrivals == "all_at_once"
    if workload.request_rate is None and varied != "request_rate" and not at_once:
        yield ("workload", "request_rate"), "missing key; give requests per second, or let the search vary it"
    if workload.num_requests is None and (at_once or workload.request_rate == math.inf):
        yield ("workload", "num_requests"), "missing key; requests that arrive all at once need a number"


def _check_times(scenario: Scenario) -> Iterator[Finding]:
    workload, run = scenario.workload, scenario.run
    endless = isinstance(workload, UsersWorkload) or (
        isinstance(workload, OpenLoopWorkload) and workload.num_requests is None
    )
    if endless and run.duration is None:
        yield ("run", "duration"), "missing key; this workload never ends by itself; give a time, for example 30min"
    if run.duration is not None:
        length = format_duration(run.duration)
        if run.duration > MOST_SECONDS:
            yield ("run", "duration"), f"must be at most {format_duration(MOST_SECONDS)}; got {length}"
        if run.warm_up >= run.duration:
            what = "must be shorter than run.duration"
            yield ("run", "warm_up"), f"{what}; got {format_duration(run.warm_up)}; run.duration is {length}"
        ramp_up = workload.ramp_up if isinstance(workload, UsersWorkload) else None
        if ramp_up is not None and ramp_up >= run.duration:
            what = "must be shorter than run.duration"
            yield ("workload", "ramp_up"), f"{what}; got {format_duration(ramp_up)}; run.duration is {length}"
    if isinstance(workload, OpenLoopWorkload):
        yield from _check_rates(workload)
        yield from _check_num_requests(scenario, workload)
    session = workload.session if isinstance(workload, UsersWorkload) else None
    if session is not None and getattr(session.length, "value", 1) == 0:
        yield ("workload", "session", "length"), "a session must last longer than 0"


def _check_rates(workload: OpenLoopWorkload) -> Iterator[Finding]:
    peaks = workload.peaks
    if peaks is not None and peaks.duration >= peaks.every:
        got = f"got {format_duration(peaks.duration)}; every is {format_duration(peaks.every)}"
        yield ("workload", "peaks", "duration"), f"a peak must end before the next begins; {got}"
    changes = workload.rate_over_time or ()
    for index in range(1, len(changes)):
        before, after = changes[index - 1].after, changes[index].after
        if after <= before:
            got = f"got {format_duration(after)} after {format_duration(before)}"
            yield ("workload", "rate_over_time", index, "after"), f"changes must be in order of time; {got}"
    if changes and changes[-1].factor == 0 and workload.num_requests is not None:
        here: Path = ("workload", "rate_over_time", len(changes) - 1, "factor")
        yield here, "the rate ends at 0, so num_requests might never be reached; give run.duration instead"


def _check_num_requests(scenario: Scenario, workload: OpenLoopWorkload) -> Iterator[Finding]:
    """Says when more requests arrive in the time of a run than can be simulated."""
    search, duration = scenario.search, scenario.run.duration
    if duration is None or workload.num_requests is not None:
        return
    if search is not None and search.vary == "request_rate":
        key, rate = ("search", "to"), search.to
    else:
        key, rate = ("workload", "request_rate"), workload.request_rate or 0.0
    if rate < math.inf and rate * duration > MOST_REQUESTS:
        much = f"{rate:g} requests/s in {format_duration(duration)} are {rate * duration:.3g} requests"
        yield key, f"{much}; at most {MOST_REQUESTS} are simulated: a lower rate, or a shorter run.duration"


def _check_search(scenario: Scenario) -> Iterator[Finding]:
    search, workload = scenario.search, scenario.workload
    if search is None:
        return
    if workload.kind not in _VARIED[search.vary]:
        fitting = [name for name, kinds in _VARIED.items() if workload.kind in kinds]
        what = f"a workload of kind {workload.kind} has no such quantity"
        yield ("search", "vary"), f"{what}; got {search.vary!r}; allowed: {', '.join(fitting)}"
    if search.from_ > search.to:
        yield ("search", "from"), f"must not exceed search.to; got {search.from_:g}; search.to is {search.to:g}"
    if search.vary == "users" and search.to > MOST_USERS:
        yield ("search", "to"), f"must be at most {MOST_USERS} users; got {search.to:.0f}"
    if search.vary != "request_rate":
        for key, value in (("from", search.from_), ("to", search.to), ("resolution", search.resolution)):
            if value is not None and value != int(value):
                yield ("search", key), f"{search.vary} are counted in whole numbers; got {value:g}"
    shared = max((item.num_shared_tokens for item in request_classes(scenario)), default=0)
    if search.vary == "context_tokens" and search.from_ <= shared:
        yield ("search", "from"), f"must exceed the shared prefix ({shared} tokens); got {search.from_:g}"
    if not scenario.objectives:
        yield ("objectives",), "missing key; a search needs at least one objective, for example 'ttft.p95 <= 2s'"


def check_class_names(scenario: Scenario, names: Sequence[str]) -> Iterator[Finding]:
    """Yields the objectives that are about a class which is not among `names`."""
    for index, objective in enumerate(scenario.objectives):
        only = objective.class_name
        if only is not None and only not in names:
            what = f"no class of this name in the workload; got {only!r}"
            yield ("objectives", index), f"{what}; {suggestion(only, names, noun='classes')}"


def _check_files(scenario: Scenario) -> Iterator[Finding]:
    for path, file in _files(scenario.workload, ("workload",)):
        place = scenario.resolve(file)
        try:
            if is_empty_file(place):
                yield path, f"the file is empty; got {file!r}"
        except FileNotFoundError:
            yield path, f"no such file; got {file!r} (looked for {place})"
        except (OSError, EOFError) as error:
            yield path, f"cannot be read; got {file!r}; {getattr(error, 'strerror', None) or error}"


def _files(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """Yields path and name of every file that a workload reads."""
    if isinstance(value, Empirical):
        yield (*path, value.kind, "file"), value.file
    elif isinstance(value, TraceWorkload):
        yield (*path, "path"), value.path
    elif isinstance(value, Part):
        for name in type(value).model_fields:
            yield from _files(getattr(value, name), (*path, name))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _files(item, (*path, index))
