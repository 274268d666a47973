"""Lengths and times are drawn as their names say."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter

from sim.errors import UserError
from sim.scenario.model import (
    DurationDistribution,
    Empirical,
    Fixed,
    Geometric,
    Lognormal,
    Normal,
    Uniform,
    UniformRatio,
)
from sim.workload import distributions
from sim.workload.random import Draws, random_stream
from sim.workload.sampling import read_values, time_sampler, token_sampler
from tests.sim.workload.made import open_loop

N = 100_000
SCENARIO = open_loop()


def draw_tokens(distribution: object, n: int = N) -> NDArray[np.int64]:
    return token_sampler(distribution, SCENARIO)(random_stream(1, "test"), n)  # type: ignore[arg-type]


def draw_times(distribution: Any, n: int = N) -> NDArray[np.int64]:
    """Draws from a distribution of times as a scenario writes it."""
    read = TypeAdapter[DurationDistribution](DurationDistribution).validate_python(distribution)
    return time_sampler(read, SCENARIO)(random_stream(1, "test"), n)


def test_times_have_the_same_laws_as_lengths() -> None:
    """A median of 45 s is one of 45 tokens, times a thousand million nanoseconds."""
    drawn = draw_times({"lognormal": {"median": "45s", "p95": "4min"}})
    assert np.median(drawn) == pytest.approx(45e9, rel=0.02)
    assert np.percentile(drawn, 95) == pytest.approx(240e9, rel=0.03)
    assert draw_times({"exponential": {"mean": "10s"}}).mean() == pytest.approx(10e9, rel=0.02)
    assert draw_times({"normal": {"mean": "1s", "std": "2s"}}).min() == 0


def test_a_lognormal_has_its_median_and_its_95th_percentile() -> None:
    drawn = draw_tokens(Lognormal(median=250, p95=2000))
    assert np.median(drawn) == pytest.approx(250, rel=0.02)
    assert np.percentile(drawn, 95) == pytest.approx(2000, rel=0.03)


def test_the_cap_of_a_lognormal_is_reached_and_never_exceeded() -> None:
    assert draw_tokens(Lognormal(median=250, p95=2000, max=1000)).max() == 1000


def test_a_lognormal_without_spread_is_its_median() -> None:
    assert set(draw_tokens(Lognormal(median=250, p95=250), 100).tolist()) == {250}


def test_a_normal_has_its_mean_and_its_standard_deviation() -> None:
    drawn = draw_tokens(Normal(mean=500, std=50))
    assert (drawn.mean(), drawn.std()) == (pytest.approx(500, rel=0.01), pytest.approx(50, rel=0.02))


def test_a_normal_is_cut_below() -> None:
    assert draw_tokens(Normal(mean=10, std=50, min=4)).min() == 4


def test_a_geometric_has_its_mean_and_starts_at_one() -> None:
    drawn = draw_tokens(Geometric(mean=8))
    assert (drawn.mean(), drawn.min()) == (pytest.approx(8, rel=0.02), 1)


def test_a_geometric_of_mean_one_is_always_one() -> None:
    assert set(draw_tokens(Geometric(mean=1), 100).tolist()) == {1}


def test_a_uniform_takes_both_of_its_bounds_as_often_as_what_lies_between() -> None:
    _, counts = np.unique(draw_tokens(Uniform(low=3, high=6)), return_counts=True)
    assert len(counts) == 4
    assert counts == pytest.approx([N / 4] * 4, rel=0.05)


@given(mean=st.integers(1, 5000), ratio=st.floats(0, 0.99))
def test_the_range_ratio_is_that_of_vllm_bench(mean: int, ratio: float) -> None:
    """Whole numbers from floor(mean·(1 − ratio)) to ceil(mean·(1 + ratio)), and at least 1."""
    drawn = draw_tokens(UniformRatio(mean=mean, ratio=ratio), 50)
    assert drawn.min() >= max(1, np.floor(mean * (1 - ratio)))
    assert drawn.max() <= np.ceil(mean * (1 + ratio))


def test_the_range_ratio_reaches_both_ends() -> None:
    """256 ± 50 % is 128 to 384, both included."""
    drawn = draw_tokens(UniformRatio(mean=256, ratio=0.5))
    assert (drawn.min(), drawn.max(), len(np.unique(drawn))) == (128, 384, 257)


@given(st.floats(0, 0.4))
def test_a_length_is_at_least_one_token(value: float) -> None:
    assert draw_tokens(Fixed(value=value), 1).tolist() == [1]


def test_a_time_may_be_zero_and_is_a_whole_number_of_nanoseconds() -> None:
    drawn = [draw_times(time, 1).tolist() for time in ("0s", "100ms", "0.1us")]
    assert drawn == [[0], [100_000_000], [100]]


def test_a_time_is_uniform_between_its_bounds_and_not_on_whole_seconds_only() -> None:
    drawn = draw_times({"uniform": {"low": "1s", "high": "3s"}})
    assert drawn.mean() == pytest.approx(2e9, rel=0.01)
    assert len(np.unique(drawn)) > N / 2


def test_an_empirical_distribution_draws_the_values_of_its_file_as_often_as_they_occur(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("input_length,output_length\n10,1\n10,2\n30,3\n30,4\n")
    here = SCENARIO.with_base_dir(tmp_path)
    sampler = token_sampler(Empirical(file="lengths.csv", column="input_length"), here)
    values, counts = np.unique(sampler(random_stream(0, "t"), N), return_counts=True)
    assert values.tolist() == [10, 30]
    assert counts == pytest.approx([N / 2] * 2, rel=0.02)


@pytest.mark.parametrize("text", ["10\n20\n\n30\n", "tokens\n10\n20\n30\n", "10\r\n20\r\n30"])
def test_a_list_of_numbers_is_read_with_and_without_a_header(tmp_path: Path, text: str) -> None:
    path = tmp_path / "values.txt"
    path.write_bytes(text.encode())
    assert read_values(path, None).tolist() == [10, 20, 30]


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    here, path = SCENARIO.with_base_dir(tmp_path), tmp_path / "values.txt"
    drawn = []
    for text in ("7\n", "11\n12\n"):
        path.write_text(text)
        drawn.append(token_sampler(Empirical(file="values.txt"), here)(random_stream(0, "t"), 20).max())
    assert drawn == [7, 12]


@pytest.mark.parametrize(
    ("text", "column", "error"),
    [
        ("", None, "1:1: empty; expected numbers"),
        ("10\nten\n", None, "2:1: got 'ten'; expected a number, at least 0"),
        ("10\n-1\n", None, "2:1: got '-1'; expected a number, at least 0"),
        ("a,b\n1,2\n", None, "1:1: several columns; name one of them with 'column': a, b"),
        ("a,b\n1,2\n", "c", "1:1: no column 'c'; got a, b"),
        ("a,bee\n1,2\n", "be", "1:1: no column 'be'; got a, bee; is it 'bee'?"),
        ("a,b\n1,2\n3,-4\n", "b", "3:3: b: got '-4'; expected a number, at least 0"),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, text: str, column: str | None, error: str) -> None:
    path = tmp_path / "values.csv"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_values(path, column)
    assert str(raised.value) == f"{path}:{error}"


def test_a_missing_file_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.csv: cannot be read: No such file"):
        token_sampler(Empirical(file="nowhere.csv"), SCENARIO.with_base_dir(tmp_path))


def test_a_compressed_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "values.csv.gz"
    path.write_bytes(gzip.compress(b"x\n1\n2\n"))
    assert read_values(path, "x").tolist() == [1, 2]


@given(seed=st.integers(0, 2**63), user=st.integers(0, 2**31), size=st.integers(1, 9))
def test_a_named_stream_gives_the_same_numbers_whatever_the_block(seed: int, user: int, size: int) -> None:
    """One draw at a time, the values come in the order of one large draw of the same blocks."""
    sampler = distributions.tokens(distributions.uniform(1, 1e6))
    one, other = (Draws(sampler, random_stream(seed, "users", user), size) for _ in range(2))
    assert [one.one() for _ in range(20)] == [other.one() for _ in range(20)]


def test_streams_of_different_names_seeds_and_users_differ() -> None:
    streams = [
        random_stream(0, "a"), random_stream(0, "b"), random_stream(1, "a"), random_stream(0, "a", 0),
        random_stream(0, "a", 1),
    ]  # fmt: skip
    assert len({stream.random() for stream in streams}) == len(streams)


def test_a_draw_too_large_for_64_bits_is_cut_and_stays_positive() -> None:
    generator = np.random.default_rng(0)
    assert distributions.tokens(distributions.fixed(1e300))(generator, 2).tolist() == [2**40, 2**40]
    assert distributions.nanoseconds(distributions.fixed(1e300))(generator, 1).tolist() == [366 * 86_400 * 10**9]
    assert distributions.nanoseconds(distributions.fixed(-1.0))(generator, 1).tolist() == [0]
