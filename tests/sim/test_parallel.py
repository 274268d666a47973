"""Many calls at once: each gives its own result, and what goes wrong in one costs no other."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.errors import UserError
from sim.parallel import KILLED, Failure, call_each, num_workers


def square(number: int) -> int:
    return number * number


def fails_at_two(number: int) -> int:
    if number == 2:
        raise ValueError("two\nmore lines")
    if number == 3:
        raise UserError("three is no number")
    return number


def dies(task: tuple[int, int]) -> int:
    number, deadly = task
    if number == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def dies_once(task: tuple[int, str]) -> int:
    number, marks = task
    mark = Path(marks) / "killed"
    if number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def threads(_task: int) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def results(function: Callable[[Any], Any], tasks: list[Any], jobs: int) -> list[Any]:
    found = dict(call_each(function, tasks, jobs=jobs))
    return [found[place] for place in range(len(tasks))]


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_task_gives_its_own_result(jobs: int) -> None:
    assert results(square, list(range(7)), jobs) == [0, 1, 4, 9, 16, 25, 36]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_exception_costs_its_own_call_alone_and_says_why_in_one_line(jobs: int) -> None:
    one, two, three, four = results(fails_at_two, [1, 2, 3, 4], jobs)
    assert (one, four) == (1, 4)
    assert two.cause == "ValueError: two"
    assert "fails_at_two" in two.details
    assert three == Failure("three is no number")
    assert str(three.as_error("call 3")) == "three is no number"
    assert isinstance(three.as_error("call 3"), UserError)
    assert str(two.as_error("call 2")).startswith("call 2: ValueError: two\n")
    assert "fails_at_two" in str(two.as_error("call 2"))
    assert str(Failure(KILLED).as_error("call 9")) == f"call 9: {KILLED}"


def test_a_call_that_kills_its_worker_twice_is_named_and_the_others_finish() -> None:
    assert results(dies, [(number, 2) for number in range(6)], 2) == [0, 1, Failure(KILLED), 3, 4, 5]


def test_a_worker_that_is_killed_once_costs_nothing(tmp_path: Path) -> None:
    assert results(dies_once, [(number, str(tmp_path)) for number in range(5)], 2) == [0, 1, 2, 3, 4]


def test_the_iterator_can_be_closed_half_way() -> None:
    calls = call_each(square, list(range(50)), jobs=2)
    place, result = next(calls)
    assert result == place * place
    calls.close()  # type: ignore[attr-defined]
    assert results(square, [5], 2) == [25]


def test_workers_end_where_there_is_no_pgrep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a slim image: a pool that breaks and one that is closed half way."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert results(dies, [(number, 2) for number in range(6)], 2) == [0, 1, Failure(KILLED), 3, 4, 5]
    calls = call_each(square, list(range(50)), jobs=2)
    next(calls)
    calls.close()  # type: ignore[attr-defined]
    assert results(square, [4], 2) == [16]


def test_a_worker_computes_on_one_thread() -> None:
    assert results(threads, [1, 2], 2) == ["1", "1"]


def test_the_number_of_workers_is_what_was_asked_for_or_one_a_core() -> None:
    assert num_workers(3, None) == 3
    assert num_workers(None, None) >= 1


def test_without_ray_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"^--cluster ray: ray is not installed; install it with: pip install "):
        num_workers(None, "ray")


RAY = """
import os, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address
sys.path.insert(0, sys.argv[1])
from sim.parallel import call_each, num_workers
from tests.sim.test_parallel import dies, fails_at_two
assert num_workers(None, "ray") == 2
print(sorted(call_each(fails_at_two, [1, 2, 4], jobs=2, cluster="ray"), key=str)[0])
print(sorted(call_each(dies, [(number, 1) for number in range(4)], jobs=2, cluster="ray"), key=str))
from typer.testing import CliRunner
from tests.sim.cli.test_sweep import invoke, write_scenario
from pathlib import Path
scenario = write_scenario(Path(sys.argv[2]))
here = invoke(scenario, "--vary", "users=2,4", "--out", sys.argv[2] + "/here")
there = invoke(scenario, "--vary", "users=2,4", "--out", sys.argv[2] + "/there", "--cluster", "ray", jobs=None)
assert here.stdout == there.stdout and there.exit_code == 0, there.output
print("same")
"""


@pytest.mark.slow
def test_a_ray_cluster_of_two_processes_gives_the_same_results(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    import subprocess  # noqa: PLC0415 - Ray is kept out of this process
    import sys  # noqa: PLC0415

    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", RAY, root, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if not line.startswith("\x1b")]
    assert lines[0] == "(0, 1)"
    assert lines[1].startswith("[(0, 0), (1, Failure(cause='its worker process was killed twice")
    assert lines[1].endswith("(2, 2), (3, 3)]")
    assert lines[2] == "same"
