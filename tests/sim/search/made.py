"""Servers whose measures are a known function of their flags, so that the front of every space is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sim.records import RunRecord
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Scenario
from sim.search import CONSTRAINTS, Archive, FlagSearch, Judge, SearchProgress, front_of, open_archive, parse_measures
from sim.search import parse_space as read_space
from sim.search.archive import Trial
from sim.search.front import losses, pareto_front
from sim.search.sampler import SpanningNsga2
from tests.sim.results.toys import MS, S, empty_run, finished

SCENARIO = """
name: made
server: {model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090, flags: {max_model_len: 256}}
workload:
  kind: open_loop
  arrivals: poisson
  request_rate: 1
  classes: [{name: only, prompt_tokens: 1, output_tokens: 11}]
run: {duration: 1000s, warm_up: 100s, seeds: 1}
"""
VARY = ["max_num_seqs=1:128:log", "max_num_batched_tokens=256:8192:log", "enable_prefix_caching=true,false"]
"""8 x 6 x 2 configurations."""

Times = Callable[[Scenario], tuple[float, float]]
"""A server -> TTFT and TPOT of all its requests, in ms."""


def trade_off(scenario: Scenario) -> tuple[float, float]:
    """A large budget lowers the TTFT and raises the TPOT, as far as there are seats; prefix caching is for nothing."""
    flags = scenario.server.flags
    assert flags.max_num_seqs is not None
    assert flags.max_num_batched_tokens is not None
    shortage = 100 / min(flags.max_num_seqs, 32)
    ttft = 50 + 4e5 / flags.max_num_batched_tokens * shortage
    tpot = 20 + flags.max_num_batched_tokens / 400 + flags.max_num_seqs / 50
    return (ttft, tpot) if flags.enable_prefix_caching else (1.3 * ttft, 1.1 * tpot)


@dataclass
class Served:
    """A simulation with the times of its scenario's flags; remembers what it was asked."""

    times: Times = trade_off
    asked: list[Scenario] = field(default_factory=list)
    stop_after: int | None = None

    def __call__(self, scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
        if len(self.asked) == self.stop_after:
            raise KeyboardInterrupt
        self.asked.append(scenario)
        ttft_ms, tpot_ms = self.times(scenario)
        run = empty_run()
        for n in range(20):
            answer = finished(n, (100 + n) * S, round(ttft_ms * MS), decode_ns=round(10 * tpot_ms * MS), tokens=11)
            run.requests.append(answer)
        run.arrivals_end_ns = 1000 * S
        run.end_ns = 1100 * S
        return run


def scenario(text: str = SCENARIO, **changes: object) -> Scenario:
    """Returns the scenario, with dotted keys (double underscores) changed."""
    return scenario_from_text(text, overrides=[f"{key.replace('__', '.')}={value}" for key, value in changes.items()])


@dataclass
class Made:
    """A search over made servers."""

    search: FlagSearch
    served: Served

    @property
    def front(self) -> set[tuple[float, ...]]:
        """The measures of the front, less is better."""
        judge, found = self.search.judge, self.trials
        return {losses(judge.measures, each.outcome) for each in front_of(found, judge) if each.outcome is not None}

    @property
    def trials(self) -> list[Trial]:
        """All trials."""
        return self.search.archive.trials()


def made_search(
    storage: str | Path,
    num_trials: int,
    *,
    base: Scenario | None = None,
    vary: list[str] | None = None,
    served: Served | None = None,
    metrics: tuple[str, str] = ("ttft.p95,tpot.p95", ""),
    seed: int = 0,
    report: Callable[[SearchProgress], None] | None = None,
) -> Made:
    """Prepares a search."""
    base = base if base is not None else scenario()
    served = served if served is not None else Served()
    space = read_space(vary if vary is not None else VARY, base)
    judge = Judge(parse_measures(*metrics, base), CONSTRAINTS)
    archive: Archive = open_archive(str(storage), "made", space, judge.measures, {})
    archive.study.sampler = SpanningNsga2(space, space.nearest({}), seed)
    return Made(FlagSearch(base, space, judge, archive, served, num_trials, report=report), served)


def grid_front(made: Made) -> tuple[int, set[tuple[float, ...]]]:
    """Simulates the whole grid: (configurations, measures of the front, less is better)."""
    from sim.scenario.load import override  # noqa: PLC0415 - of this one function

    space = made.search.space
    points = []
    for identity in space.all():
        ttft, tpot = made.served.times(override(made.search.base, space.at(identity)))
        points.append((identity, (float(f"{ttft / 1000:.6g}"), float(f"{tpot / 1000:.6g}"))))
    front = set(pareto_front(points))
    return len(points), {values for identity, values in points if identity in front}
