"""Measures everything that README.md states and writes it there: `python -m tests.benchmarks.record`.

Each measurement runs in a process of its own, one after the other. Choose an idle machine: the conditions are written
down with the figures. `--only single,growth` measures some of the parts and leaves the others of README.md as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import sim.core.scheduler
from sim.results.storage import versions
from tests.benchmarks.measure import Figure

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


PARTS: dict[str, Callable[[], list[str]]] = {
    "single": single, "engines": engines, "others": others, "growth": growth, "hour": hour
}  # fmt: skip


def run(workload: str, num_requests: int, engine: str = "fast") -> Figure:
    """Measures in a new process."""
    command = [sys.executable, "-m", "tests.benchmarks.measure", workload, str(num_requests), engine]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figure = Figure(**json.loads(done.stdout))
    print(figure.line(), flush=True)  # noqa: T201 - the report of a script
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
