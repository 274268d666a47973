"""Measures everything that README.md states and writes it there: `python -m tests.benchmarks.record`.

Each measurement runs in a process of its own, one after the other. Choose an idle machine: the conditions are written
down with the figures. `--only single,growth` measures some of the parts and leaves the others of README.md as they are.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sim.core.scheduler
from sim.results.storage import versions
from sim.scenario.load import override
from sim.scenario.model import Scenario
from tests.benchmarks.measure import Figure
from tests.benchmarks.workloads import single as single_workload

README = Path(__file__).with_name("README.md")


def single() -> list[str]:
    """The peers' workload, small and large, and what 90,000 further requests take in memory."""
    small, large = run("single", 10_000), run("single", 100_000)
    per_request = 1e6 * (large.peak_mb - small.peak_mb) / (large.num_requests - small.num_requests)
    return [*table([small, large]), "", f"Peak memory per request: {per_request:.0f} bytes, from 10,000 to 100,000."]


def engines() -> list[str]:
    """The same requests by each engine."""
    return table([run("synchronous", 5_000, engine) for engine in ("fast", "reference", "naive")])


def others() -> list[str]:
    """What makes a scheduler's life harder."""
    return table([run(name, 20_000) for name in ("long_prompts", "conversations", "preemption")])


def growth() -> list[str]:
    """From a thousand requests to a million."""
    return table([run("trace", number) for number in (1_000, 10_000, 100_000, 1_000_000)])


def hour() -> list[str]:
    """One hour of 300 developers."""
    return table([run("coding_assistant", 0)])


def cores() -> list[str]:
    """A sweep of 16 runs of several seconds each, on one core and on two, by turns: a machine has good minutes."""
    path = _scenario(override(single_workload(80_000), {"run.seeds": 16}))
    lines = []
    for _ in range(2):
        one, two = (_sweep_seconds(path, jobs) for jobs in (1, 2))
        lines.append(
            f"- 16 runs of 80,000 requests: {one:.0f} s on one core ({one / 16:.1f} s a run), {two:.0f} s on two: "
            f"{one / two:.2f} times as fast."
        )
    return lines


def start_up() -> list[str]:
    """What the commands spend besides simulating: median of ten, files in the cache."""
    path = _scenario(single_workload(1))
    check = statistics.median(_seconds("check", str(path)) for _ in range(10))
    run_one = statistics.median(_seconds("run", str(path), "--seeds", "1") for _ in range(10))
    return [f"`headcount check`: {check:.2f} s. `headcount run` of one request: {run_one:.2f} s."]


PARTS: dict[str, Callable[[], list[str]]] = {
    "single": single, "engines": engines, "others": others, "growth": growth, "hour": hour, "cores": cores,
    "start_up": start_up,
}  # fmt: skip


def run(workload: str, num_requests: int, engine: str = "fast") -> Figure:
    """Measures in a new process."""
    command = [sys.executable, "-m", "tests.benchmarks.measure", workload, str(num_requests), engine]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figure = Figure(**json.loads(done.stdout))
    print(figure.line(), flush=True)
    return figure


def table(figures: list[Figure]) -> list[str]:
    """Returns the figures as a Markdown table."""
    rows = [
        "| workload | engine | requests | steps | simulated | CPU s | requests / CPU-s | steps / CPU-s "
        "| output tokens / CPU-s | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in figures:
        rates = " | ".join(
            f"{each.per_cpu_s(count):,.0f}" for count in (each.num_requests, each.num_steps, each.num_tokens)
        )
        rows.append(
            f"| {each.workload} | {each.engine} | {each.num_requests:,} | {each.num_steps:,} "
            f"| {each.simulated_s / 60:,.1f} min | {each.cpu_s:.2f} | {rates} | {each.peak_mb:,.0f} |"
        )
    return rows


def conditions() -> str:
    """Returns one sentence on the machine and what else it was doing."""
    models = re.findall(r"model name\s*: (.*)", _text("/proc/cpuinfo")) or [platform.processor() or platform.machine()]
    load = "/".join(f"{each:.1f}" for each in os.getloadavg())
    is_compiled = not str(sim.core.scheduler.__file__).endswith(".py")
    known = versions()
    return (
        f"{models[0]}, {os.cpu_count()} cores, load average {load} at the start; Python {known['python']}, "
        f"headcount {known['headcount']}, {'compiled core' if is_compiled else 'pure Python'}, numpy {known['numpy']}, "
        f"simpy {known['simpy']}."
    )


def write(name: str, lines: list[str], said: str) -> None:
    """Puts a part between its marks in README.md."""
    text = README.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    body = "\n".join([begin, said, "", *lines, end])
    README.write_text(before + body + after, encoding="utf-8")


def _scenario(scenario: Scenario) -> Path:
    """Writes a scenario to a file that lasts as long as this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = Path(folder) / "scenario.yaml"
    path.write_text(scenario.model_dump_json(by_alias=True, exclude_none=True), encoding="utf-8")  # JSON is YAML
    return path


def _sweep_seconds(path: Path, jobs: int) -> float:
    """Returns the wall-clock time of a sweep of one point with 16 seeds."""
    with tempfile.TemporaryDirectory() as out:
        vary = ("--vary", "server.max_num_seqs=256", "--seeds", "16", "--jobs", str(jobs), "--out", out)
        return _seconds("sweep", str(path), *vary)


def _seconds(*arguments: str) -> float:
    """Returns the wall-clock time of a command of headcount."""
    command = [sys.executable, "-c", "from sim.cli import main; main()", *arguments]
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - began


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def main() -> None:
    """Measures the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {', '.join(PARTS)}")
    for name in parser.parse_args().only.split(","):
        said = conditions()
        write(name, PARTS[name](), said)


if __name__ == "__main__":
    main()
