"""Requests, steps and output tokens per CPU-second, against a naive engine in the same run: `make bench`.

Timings depend on the machine and on what else it does, so nothing here fails for a slow one: only the comparison with
the naive engine on the same machine is a test. `record.py` writes the figures of README.md.
"""

import time

import pytest

from tests.benchmarks.measure import Figure, measure

pytest.importorskip("pytest_benchmark", reason="pip install pytest-benchmark")

SIZES = {"single": 10_000, "long_prompts": 3_000, "conversations": 5_000, "preemption": 5_000}


@pytest.mark.benchmark(group="headcount", timer=time.process_time)
@pytest.mark.parametrize(("workload", "num_requests"), SIZES.items())
def test_headcount(benchmark: object, workload: str, num_requests: int) -> None:
    figure = once(benchmark, workload, num_requests, "fast")
    assert figure.num_requests > 0.8 * num_requests


@pytest.mark.benchmark(group="against a naive engine", timer=time.process_time)
def test_the_same_steps_cost_less_than_in_a_naive_engine(benchmark: object) -> None:
    fast = once(benchmark, "synchronous", 3_000, "fast")
    others = [measure("synchronous", 3_000, engine) for engine in ("naive", "reference")]
    for figure in others:
        print(figure.line())
    assert len({figure.num_steps for figure in (fast, *others)}) == 1
    assert fast.cpu_s < others[0].cpu_s < others[1].cpu_s


@pytest.mark.benchmark(group="scale", timer=time.process_time)
def test_an_hour_of_300_developers(benchmark: object) -> None:
    assert once(benchmark, "coding_assistant", 0, "fast").num_requests >= 15_000


def once(benchmark: object, workload: str, num_requests: int, engine: str) -> Figure:
    """Measures one run: the scenario is made and everything is loaded before."""
    figure: Figure = benchmark.pedantic(  # type: ignore[attr-defined]
        measure, args=(workload, num_requests, engine), rounds=1, iterations=1
    )
    counts = {"requests": figure.num_requests, "steps": figure.num_steps, "output tokens": figure.num_tokens}
    for name, count in counts.items():
        benchmark.extra_info[f"{name} per CPU-second"] = round(figure.per_cpu_s(count))  # type: ignore[attr-defined]
    print(f"\n{figure.line()}")
    return figure
