"""Every shipped profile loads, serves its own server, has its place in the README, and says how wrong it is."""

from __future__ import annotations

import pytest

from calibrate.profile_tables import README, shipped, with_tables
from calibrate.replay_server import choose_server
from sim.engine.profile import load_profile, profile_names
from sim.engine.profile_draws import has_uncertainty, sample_profiles
from sim.engine.step_time import Batch

NAMES = profile_names()


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_plans_its_own_server(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    deployment = choose_server(profile).plan()
    assert not [warning for warning in deployment.warnings if warning.startswith("profile ")]
    model = deployment.step_time_model()
    one, many = Batch.of([100]), Batch.of([100] * 8, [(256, 0)])
    assert 0 < model.step_time(one) < model.step_time(many)


@pytest.mark.parametrize("name", NAMES)
def test_it_stands_in_the_readme_with_its_errors(name: str) -> None:
    assert f"({name}.yaml)" in README.read_text(encoding="utf-8")


def test_the_readme_shows_the_errors_that_the_profiles_state() -> None:
    readme = README.read_text(encoding="utf-8")
    assert with_tables(readme, shipped()) == readme
    for profile in shipped():
        worst = max((row.error_percent for table in profile.errors for row in table.rows), key=abs)
        assert f"{worst:+.1f}" in readme.split(f"### {profile.name}\n")[1].split("\n### ")[0]


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_profiles_of_the_same_server(name: str) -> None:
    profile = load_profile(name)
    first, second = sample_profiles(profile, 2, seed=0)
    assert first.server == profile.server
    assert (first != second) == has_uncertainty(profile)
    assert sample_profiles(profile, 1, seed=0) == (first,)
    assert (sample_profiles(profile, 1, seed=1) != (first,)) == has_uncertainty(profile)
