"""Where the step time goes: the mean step of a run, part by part, over all steps and by kind of step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sim.records import StepSplit
from sim.results.columns import BoolArray, as_array


@dataclass(frozen=True, slots=True)
class MeanStep:
    """The mean of some steps.

    Attributes:
        count: how many.
        mean_ms: their mean duration.
        parts: part -> mean milliseconds; they add up to `mean_ms`.
    """

    count: int
    mean_ms: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the steps of a whole run are made of.

    Attributes:
        source: the model of step times that says so.
        all: of all steps.
        decode_only: of those in which all requests decode; None without any.
        with_prompts: of those that carry prompt chunks; None without any.
    """

    source: str
    all: MeanStep
    decode_only: MeanStep | None
    with_prompts: MeanStep | None


def step_times(split: StepSplit | None) -> StepTimes | None:
    """Sums up a run's parts; None where they were not kept, or the step-time model does not know them."""
    if split is None or not split.parts:
        return None
    with_prompts: BoolArray = as_array(split.with_prompts) > 0
    return StepTimes(
        source=split.source,
        all=_mean(split, with_prompts | True),
        decode_only=_mean(split, ~with_prompts) if not with_prompts.all() else None,
        with_prompts=_mean(split, with_prompts) if with_prompts.any() else None,
    )


def _mean(split: StepSplit, chosen: BoolArray) -> MeanStep:
    count = int(chosen.sum())
    parts = {name: int(as_array(column)[chosen].sum()) / count / 1e6 for name, column in split.parts.items()}
    return MeanStep(count, sum(parts.values()), {name: ms for name, ms in parts.items() if ms > 0})
