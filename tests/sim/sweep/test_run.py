"""A sweep makes each run once, gives the points back in order, and keeps what is finished whatever happens."""

from functools import partial
from pathlib import Path

import pytest

from sim.capacity import Point
from sim.errors import UserError
from sim.records import RunRecord
from sim.results.metrics import summarize
from sim.scenario.model import Scenario, UsersWorkload
from sim.simulate import simulate
from sim.sweep import KeptRuns, PointResult, Sweep, SweepProgress, parse_axes, plan_points
from tests.sim.sweep.made import write


def users_of(scenario: Scenario) -> int | None:
    assert isinstance(scenario.workload, UsersWorkload)
    return scenario.workload.users


def counted(calls: Path, scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
    with calls.open("a") as file:
        file.write(f"{users_of(scenario)}/{seed}\n")
    return simulate(scenario, seed=seed, load=load)


def fails_at_four(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
    if users_of(scenario) == 4 and seed == 1:
        raise RuntimeError("boom")
    return simulate(scenario, seed=seed, load=load)


def never(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
    raise AssertionError(f"made again: {users_of(scenario)}/{seed}")


class Made:
    """A sweep of a tiny scenario, in its own folder."""

    def __init__(self, folder: Path, *texts: str) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.kept = KeptRuns(folder / "kept")
        axes = parse_axes(list(texts) or ["users=2,4,6"])
        self.points = plan_points(write(folder), axes)

    def sweep(self, simulate: object = None, shard: tuple[int, int] = (1, 1)) -> Sweep:
        chosen = partial(counted, self.calls) if simulate is None else simulate
        return Sweep(self.points, (0, 1), self.kept, chosen, shard=shard)  # type: ignore[arg-type]

    def made(self) -> list[str]:
        return sorted(self.calls.read_text().split()) if self.calls.exists() else []


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def judged(results: list[PointResult]) -> list[Point | None]:
    return [result.judged for result in results]


def test_points_come_in_order_judged_as_the_search_would(made: Made) -> None:
    results = list(made.sweep().results())
    assert [result.point.number for result in results] == [0, 1, 2]
    for result in results:
        scenario = result.point.scenario
        assert scenario is not None
        runs = [summarize(simulate(scenario, seed=seed), scenario) for seed in (0, 1)]
        assert result.judged == Point.of(result.point.stated_load, (0, 1), runs, scenario.objectives)
    assert made.made() == ["2/0", "2/1", "4/0", "4/1", "6/0", "6/1"]


def test_the_number_of_jobs_changes_nothing(made: Made, tmp_path: Path) -> None:
    one = list(made.sweep().results(jobs=1))
    (tmp_path / "again").mkdir()
    assert judged(list(Made(tmp_path / "again").sweep().results(jobs=2))) == judged(one)


def test_finished_runs_are_not_made_again(made: Made) -> None:
    first = list(made.sweep().results())
    assert judged(list(made.sweep(never).results())) == judged(first)


def test_a_wider_sweep_makes_only_what_is_new(made: Made, tmp_path: Path) -> None:
    list(made.sweep().results())
    wider = Made(tmp_path, "users=2:10:4")
    assert [result.point.stated_load for result in wider.sweep().results()] == [2, 6, 10]
    assert wider.made()[:2] == ["10/0", "10/1"]
    assert len(wider.made()) == 8


def test_combinations_that_are_the_same_run_are_made_once(tmp_path: Path) -> None:
    made = Made(tmp_path, "users=2", "run.duration=20s,20000ms")
    first, second = made.sweep().results()
    assert first.judged == second.judged
    assert made.made() == ["2/0", "2/1"]


def test_a_sweep_that_is_interrupted_goes_on_where_it_was(made: Made) -> None:
    results = made.sweep().results()
    first = next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(made.made()) == 2
    again = list(made.sweep().results())
    assert again[0].judged == first.judged
    assert made.made() == ["2/0", "2/1", "4/0", "4/1", "6/0", "6/1"]


def test_shards_share_the_runs_and_a_whole_sweep_puts_them_together(made: Made) -> None:
    whole = judged(list(Made(made.folder).sweep().results()))
    for path in (made.folder / "kept" / "runs").iterdir():
        path.unlink()
    made.calls.unlink()
    parts = [list(made.sweep(shard=(index, 3)).results()) for index in (1, 2, 3)]
    assert [sum(len(result.judged.seeds) for result in part if result.judged) for part in parts] == [2, 2, 2]
    assert made.made() == ["2/0", "2/1", "4/0", "4/1", "6/0", "6/1"]
    assert judged(list(made.sweep(never).results())) == whole


def test_a_failed_run_is_told_and_costs_no_other(made: Made) -> None:
    news: list[tuple[int, int, str]] = []

    def report(progress: SweepProgress) -> None:
        news.append((progress.num_done, progress.num_failed, progress.cause))

    sweep = made.sweep(fails_at_four)
    sweep.report = report
    two, four, six = sweep.results()
    assert (two.cause, six.cause) == ("", "")
    assert four.cause == "seed 1: RuntimeError: boom"
    assert four.judged is not None
    assert four.judged.seeds == (0,)
    (failed,) = [cause for _, _, cause in news if cause]
    assert failed.startswith("RuntimeError: boom (traceback in ")
    assert "boom" in Path(failed.split(" in ")[1].rstrip(")")).read_text()
    assert news[-1][:2] == (6, 1)
    assert list(made.sweep().results())[1].cause == ""
    assert made.made() == ["4/1"]  # a failed run is tried again, and it alone


def test_what_cannot_be_written_stops_the_sweep_in_one_line_and_keeps_the_rest(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text = Path.write_text
    written: list[Path] = []

    def full(path: Path, text: str, **options: str) -> int:
        if path.parent.name == "runs" and len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        return write_text(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"cannot be written: No space left on device; choose another folder") as caught:
        list(made.sweep().results())
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    made.calls.unlink()
    list(made.sweep().results())
    assert made.made() == ["4/1", "6/0", "6/1"]


def test_the_share_of_the_work_grows_with_the_loads_that_are_done(made: Made) -> None:
    shares: list[float] = []
    sweep = made.sweep()
    sweep.report = lambda progress: shares.append(progress.share)
    list(sweep.results())
    assert shares == pytest.approx([0, 2 / 24, 4 / 24, 8 / 24, 12 / 24, 18 / 24, 1])
