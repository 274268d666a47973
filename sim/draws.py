"""Runs with step times drawn from what a profile is not sure of, so that an interval can cover it."""

from __future__ import annotations

from dataclasses import dataclass

from sim.deployment import plan
from sim.engine.profile import Profile
from sim.engine.profile_draws import has_uncertainty, sample_profiles
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.simulate import simulate


@dataclass(frozen=True, slots=True)
class DrawnSimulate:
    """`simulate` with a draw of the profile for each seed: the same one at every load. Picklable.

    Attributes:
        profiles: the draws, by seed.
        reference: see `simulate`.
    """

    profiles: dict[int, Profile]
    reference: bool = False

    def __call__(self, scenario: Scenario, *, seed: int, load: float | None) -> RunRecord:
        """Makes one run."""
        return simulate(scenario, seed=seed, load=load, reference=self.reference, profile=self.profiles[seed])


def drawn_simulate(scenario: Scenario, *, reference: bool = False) -> DrawnSimulate | None:
    """Returns what simulates each seed of a scenario with step times of its own draw.

    Args:
        scenario: its server's profile is drawn from; `run.seed` names the draws.
        reference: see `simulate`.

    Returns:
        None where there is nothing to draw: no fitted profile (Ollama's are not drawn from), or one that states no
        uncertainty.

    Raises:
        UserError: the server would not start.
    """
    if scenario.server.kind == "ollama":
        return None
    profile = plan(scenario).profile
    if profile is None or not has_uncertainty(profile):
        return None
    first, number = scenario.run.seed, scenario.run.seeds
    draws = sample_profiles(profile, number, seed=first)
    return DrawnSimulate({first + index: draw for index, draw in enumerate(draws)}, reference)
