"""What is wrong with a scenario, one line each: where, which key, what, what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sim.errors import UserError

Path = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        where: `file:line:col` (both from 1), the file alone, or the `--set` at fault.
        key: the dotted key, or nothing when the whole file is at fault.
        message: what is wrong, what was given, what is allowed.
        order: line and column, to sort by.
    """

    where: str
    key: str
    message: str
    order: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


class ScenarioError(UserError):
    """A scenario that cannot be used; its text is one line for each problem, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=lambda problem: problem.order))
        super().__init__("\n".join(map(str, self.problems)))


class ContradictionError(ScenarioError):
    """Each key has a value that it may have, and they do not go together."""


def dotted(path: Path) -> str:
    """Returns `workload.classes.0.turns`."""
    return ".".join(map(str, path))
