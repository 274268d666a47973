"""One measurement: a workload simulated by one engine, what it cost in CPU time and memory.

`python -m tests.benchmarks.measure single 10000 fast` measures in a process of its own, as `record.py` does, so that
the peak of its memory is that of the run.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sim.results.metrics import summarize
from sim.results.storage import write_run
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.benchmarks.naive import NaiveEngine
from tests.benchmarks.workloads import WORKLOADS, single, trace

ENGINES = ("fast", "reference", "naive")


@dataclass(frozen=True)
class Figure:
    """What one run was and cost.

    Attributes:
        workload: its name in `WORKLOADS`, or `trace`.
        engine: `fast` and `reference` are headcount's; `naive` loops over the requests.
        num_requests: requests simulated.
        num_steps: engine steps.
        num_tokens: output tokens.
        cpu_s: CPU seconds of this process from scenario to Parquet files (`naive`: to the last token).
        peak_mb: the largest memory this process has had by then, in MB of 10^6 bytes, the interpreter included.
        simulated_s: virtual time.
    """

    workload: str
    engine: str
    num_requests: int
    num_steps: int
    num_tokens: int
    cpu_s: float
    peak_mb: float
    simulated_s: float

    def per_cpu_s(self, count: int) -> float:
        """Returns a count per CPU second."""
        return count / self.cpu_s

    def line(self) -> str:
        """Returns the figure in words."""
        return (
            f"{self.workload}, {self.engine}: {self.num_requests:,} requests in {self.cpu_s:.2f} CPU s: "
            f"{self.per_cpu_s(self.num_requests):,.0f} requests, {self.per_cpu_s(self.num_steps):,.0f} steps, "
            f"{self.per_cpu_s(self.num_tokens):,.0f} output tokens per CPU-second; peak {self.peak_mb:.0f} MB"
        )


def measure(workload: str, num_requests: int, engine: str = "fast") -> Figure:
    """Simulates a workload and writes its results; imports and the making of the scenario are not measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _headcount(single(20), folder, reference=False)  # what is imported once
        scenario = trace(num_requests, folder) if workload == "trace" else WORKLOADS[workload](num_requests)
        began = time.process_time()
        if engine == "naive":
            counts = _naive(scenario)
        else:
            counts = _headcount(scenario, folder, reference=engine == "reference")
        cpu_s = time.process_time() - began
    return Figure(workload=workload, engine=engine, cpu_s=cpu_s, peak_mb=_peak_mb(), **counts)


def _headcount(scenario: Scenario, folder: Path, *, reference: bool) -> dict[str, Any]:
    run = simulate(scenario, seed=0, reference=reference)
    summarize(run, scenario)
    write_run(folder / "run", run, {"scenario": scenario.name})
    return {
        "num_requests": len(run.requests),
        "num_steps": len(run.steps.end_ns),
        "num_tokens": sum(request.num_output_tokens for request in run.requests),
        "simulated_s": run.end_ns / 1e9,
    }


def _naive(scenario: Scenario) -> dict[str, Any]:
    engine = NaiveEngine(scenario, seed=0)
    end_ns = engine.run()
    return {
        "num_requests": len(engine.done),
        "num_steps": engine.num_steps,
        "num_tokens": sum(len(request.token_times) for request in engine.done),
        "simulated_s": end_ns / 1e9,
    }


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures one run of a workload in this process.")
    parser.add_argument("workload", choices=[*WORKLOADS, "trace"])
    parser.add_argument("num_requests", type=int)
    parser.add_argument("engine", nargs="?", choices=ENGINES, default="fast")
    print(json.dumps(asdict(measure(**vars(parser.parse_args())))))
