"""The trials of a search in an Optuna storage, which several processes and machines may share.

One search is one study; its name holds a hash of everything that is asked (scenario, flags and their values, measures,
constraints, seeds, code), so that the same command finds its trials again and another question never meets them.

What is kept of a trial, beside what Optuna keeps itself (parameters, values, constraints, state):

    outcome    everything that was measured, as plain data
    address    the content hash of the configuration
    same_as    the number of the trial whose simulation it shares, as both mean the same server
    kind       of a trial without an outcome: refused (the server would not start) or failed (the simulation did)
    cause      why
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sim.errors import UserError
from sim.search.front import losses
from sim.search.measures import Direction, Measure
from sim.search.outcome import Outcome
from sim.search.space import Parameters, Space

if TYPE_CHECKING:
    import optuna

State = Literal["done", "refused", "failed", "running", "dropped"]

_ATTEMPTS = 5  # at a new storage, when several processes make it at once
_WAIT_S = 60  # for another process that is writing the SQLite file


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial.

    Attributes:
        number: of the study, from 0.
        parameters: dotted key -> value; empty while they are being chosen.
        state: `dropped` trials were interrupted, or another process was quicker: their configuration is free.
        outcome: of a trial that is done.
        cause: why one was refused or failed.
        address: content hash of the configuration.
        same_as: number of the trial that was simulated in its place.
    """

    number: int
    parameters: Parameters
    state: State
    outcome: Outcome | None = None
    cause: str = ""
    address: str = ""
    same_as: int | None = None


@dataclass(slots=True)
class Archive:
    """One study.

    Attributes:
        study: Optuna's.
        space: what is varied.
        measures: the objectives, in the order of the study's directions.
    """

    study: optuna.Study
    space: Space
    measures: tuple[Measure, ...]
    _asked: dict[int, optuna.Trial] = field(default_factory=dict)
    _ended: dict[int, Trial] = field(default_factory=dict)

    def trials(self) -> list[Trial]:
        """Returns every trial of every process, by number."""
        found = []
        for each in self.study.get_trials(deepcopy=False):
            trial = self._ended.get(each.number) or _trial(each, self.space)
            if trial.state != "running":
                self._ended[each.number] = trial
            found.append(trial)
        return found

    def ask(self) -> Trial | None:
        """Begins a trial; None when another process has made or begun the same configuration just before.

        One that is only begun is left to its process while there are others: that process may be dead.
        """
        asked = self.study.ask(distributions(self.space))
        self._asked[asked.number] = asked
        chosen = {axis.key: asked.params[axis.key] for axis in self.space.axes}
        identity, others = self.space.identity(chosen), self.trials()
        begun = self._identities(others[: asked.number], "running")
        decided = self._identities(others, "done", "refused", "failed")
        if identity in decided or (identity in begun and len(begun | decided) < self.space.size):
            self.drop(asked.number)
            return None
        return Trial(asked.number, chosen, "running")

    def _identities(self, trials: Sequence[Trial], *states: State) -> set[tuple[int, ...]]:
        return {self.space.identity(each.parameters) for each in trials if each.parameters and each.state in states}

    def finish(self, number: int, outcome: Outcome, address: str, same_as: int | None = None) -> None:
        """Ends a trial with its outcome."""
        trial = self._asked[number]
        trial.set_user_attr("outcome", outcome.to_data())
        trial.set_user_attr("address", address)
        if same_as is not None:
            trial.set_user_attr("same_as", same_as)
        for name, violation in outcome.violations.items():
            trial.set_constraint(name, violation)
        signs = [1.0 if each.direction == "minimize" else -1.0 for each in self.measures]
        values = [sign * loss for sign, loss in zip(signs, losses(self.measures, outcome), strict=True)]
        self.study.tell(number, values)

    def give_up(self, number: int, kind: Literal["refused", "failed"], cause: str) -> None:
        """Ends a trial that has no outcome and will not be tried again."""
        trial = self._asked[number]
        trial.set_user_attr("kind", kind)
        trial.set_user_attr("cause", cause)
        self._fail(number)

    def drop(self, number: int) -> None:
        """Ends a trial that was not made: its configuration may be chosen again."""
        self._fail(number)

    def _fail(self, number: int) -> None:
        from optuna.trial import TrialState  # noqa: PLC0415 - an extra

        self.study.tell(number, state=TrialState.FAIL)


def distributions(space: Space) -> dict[str, Any]:
    """Returns the space as Optuna has it: each axis a choice among its values."""
    from optuna.distributions import CategoricalDistribution  # noqa: PLC0415 - an extra

    return {axis.key: CategoricalDistribution(axis.values) for axis in space.axes}


def open_archive(
    storage: str, name: str, space: Space, measures: tuple[Measure, ...], attributes: Mapping[str, Any]
) -> Archive:
    """Opens a study, and begins it when it is not there.

    Args:
        storage: an Optuna storage URL, or the path of an SQLite file.
        name: of the study.
        space: what is varied.
        measures: what is made small or large.
        attributes: told to a person who looks into the storage.

    Raises:
        UserError: Optuna is not installed, or the storage cannot be opened.
    """
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with _told_in_one_line(storage):
        study = _created(optuna, storage, name, [each.direction for each in measures])
        for key, value in {**attributes, "metrics": [each.name for each in measures]}.items():
            study.set_user_attr(key, value)
    return Archive(study, space, measures)


def import_optuna() -> Any:
    """Returns the package.

    Raises:
        UserError: it is not installed.
    """
    try:
        import optuna  # noqa: PLC0415 - an extra
    except ImportError:
        raise UserError("search: Optuna is not installed; install it with: pip install 'headcount[search]'") from None
    return optuna


def shown_url(storage: str) -> str:
    """Returns a storage as it may be printed: without its password."""
    return re.sub(r"(://[^:/@]+):[^@/]*@", r"\1:***@", storage)


def _created(optuna: Any, storage: str, name: str, directions: list[Direction]) -> Any:
    """Returns the study; where another process makes the tables of a new storage just now, it is waited for."""
    for attempt in range(_ATTEMPTS):
        try:
            return optuna.create_study(
                storage=_opened(storage), study_name=name, directions=directions, load_if_exists=True
            )
        except Exception as error:  # SQLAlchemy's, whose class depends on the database
            if attempt == _ATTEMPTS - 1 or not re.search(r"already exists|UNIQUE|duplicate key", str(error)):
                raise
            time.sleep(0.2 * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _opened(storage: str) -> Any:
    """Returns Optuna's storage."""
    from optuna.storages import RDBStorage, get_storage  # noqa: PLC0415 - an extra

    url = storage if "://" in storage else f"sqlite:///{storage}"
    if not url.startswith("sqlite:"):
        return get_storage(url)
    place = url.partition("///")[2].partition("?")[0]
    if place:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
    return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _WAIT_S}})


@contextmanager
def _told_in_one_line(storage: str) -> Iterator[None]:
    """Turns whatever a storage may raise while it is opened into one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # drivers, SQLAlchemy, Redis and the file system each have errors of their own
        said: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = shown_url(said[0]) if said else type(error).__name__
        raise UserError(
            f"--storage {shown_url(storage)}: cannot be opened: {reason}; expected a file for SQLite, or an Optuna "
            "storage URL such as postgresql://user@host/name with its driver installed"
        ) from None


def _trial(frozen: optuna.trial.FrozenTrial, space: Space) -> Trial:
    from optuna.trial import TrialState  # noqa: PLC0415 - an extra

    told = frozen.user_attrs
    chosen = {axis.key: frozen.params[axis.key] for axis in space.axes if axis.key in frozen.params}
    chosen = chosen if len(chosen) == len(space.axes) else {}
    if frozen.state == TrialState.COMPLETE:
        outcome = Outcome.from_data(told["outcome"])
        return Trial(frozen.number, chosen, "done", outcome, "", told["address"], told.get("same_as"))
    if frozen.state == TrialState.FAIL:
        return Trial(frozen.number, chosen, told.get("kind", "dropped"), cause=told.get("cause", ""))
    return Trial(frozen.number, chosen, "running")
