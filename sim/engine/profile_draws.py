"""Draws from what a profile does not know: its coefficients' uncertainty, so that an interval can cover it.

A fitted profile states a covariance of its step-time terms, and standard errors of the time outside the engine. A draw
is one profile that the data allow just as well. Simulating each seed with a draw of its own makes the spread over seeds
cover the fit as well as the arrivals:

    for seed, drawn in zip(seeds, sample_profiles(profile, len(seeds), seed=0)):
        ...  # the same draw at every load: loads are compared on the same server
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sim.engine.profile import ClientSide, Profile
from sim.engine.profile_terms import Estimate, FittedStepTime

_MOE = "moe.growth_us"


def sample_profiles(profile: Profile, number: int, seed: int) -> tuple[Profile, ...]:
    """Returns draws of a profile, deterministic in the seed; the profile itself where it states no uncertainty.

    Step terms are drawn together from a normal distribution with the profile's covariance, the times outside the
    engine one by one from their standard errors; negative draws become 0. Draws keep everything else, the measured
    errors included: those are of the profile itself.

    Args:
        profile: any profile; operator tables and linear models have no covariance.
        number: how many draws.
        seed: names the draws; draw i is the same whatever the number.
    """
    return tuple(_draw(profile, seed, index) for index in range(number))


def has_uncertainty(profile: Profile) -> bool:
    """Returns whether draws differ from the profile."""
    return bool(_deviations(profile.client_latency)) or (
        isinstance(profile.step_time, FittedStepTime) and profile.step_time.covariance is not None
    )


def _draw(profile: Profile, seed: int, index: int) -> Profile:
    rng = np.random.default_rng([seed, index])
    update: dict[str, FittedStepTime | ClientSide] = {}
    step_time = profile.step_time
    if isinstance(step_time, FittedStepTime) and step_time.covariance is not None:
        covariance = step_time.covariance
        mean = [_value(step_time, name) for name in covariance.names]
        drawn = rng.multivariate_normal(mean, np.array(covariance.matrix), method="eigh", check_valid="ignore")
        values = {name: max(0.0, float(value)) for name, value in zip(covariance.names, drawn, strict=True)}
        update["step_time"] = _with_values(step_time, values)
    client = profile.client_latency
    moved = {
        name: Estimate(value=max(0.0, getattr(client, name).value + stderr * float(rng.standard_normal())))
        for name, stderr in _deviations(client).items()
    }
    if moved:
        update["client_latency"] = client.model_copy(update=moved)
    return profile.model_copy(update=update) if update else profile


def _deviations(client: ClientSide) -> dict[str, float]:
    """Returns the standard errors that are stated, by field, in the order of the fields."""
    found = {name: getattr(client, name).stderr for name in ClientSide.model_fields}
    return {name: stderr for name, stderr in found.items() if stderr}


def _value(step_time: FittedStepTime, name: str) -> float:
    if name == _MOE:
        return step_time.moe.growth_us.value if step_time.moe else 0.0
    return float(getattr(step_time, name).value)


def _with_values(step_time: FittedStepTime, values: Mapping[str, float]) -> FittedStepTime:
    update: dict[str, object] = {name: Estimate(value=value) for name, value in values.items() if name != _MOE}
    for name in ("overlap", "smoothness"):
        if name in values:
            update[name] = Estimate(value=min(1.0, values[name]))
    if _MOE in values and step_time.moe is not None:
        update["moe"] = step_time.moe.model_copy(update={"growth_us": Estimate(value=values[_MOE])})
    return step_time.model_copy(update=update)
