"""Which flags are best: a search over several objectives with Optuna's NSGA-II, its trials kept in a shared storage.

Start reading at `search.py`. `space.py` says what is varied, `measures.py` what is made small or large, `sampler.py`
what is tried next, `archive.py` what is kept, `command_lines.py` how a result is started and repeated.
"""

from __future__ import annotations

from sim.search.archive import Archive, Trial, import_optuna, open_archive, shown_url
from sim.search.command_lines import run_command, serve_command
from sim.search.configuration import Configuration, configure, resolved
from sim.search.measures import Measure, Prices, parse_measure, parse_measures
from sim.search.outcome import CONSTRAINTS, Judge, Outcome
from sim.search.search import FlagSearch, SearchProgress, distinct, front_of, study_name
from sim.search.space import Space, full_key, parse_space

__all__ = [
    "CONSTRAINTS",
    "Archive",
    "Configuration",
    "FlagSearch",
    "Judge",
    "Measure",
    "Outcome",
    "Prices",
    "SearchProgress",
    "Space",
    "Trial",
    "configure",
    "distinct",
    "front_of",
    "full_key",
    "import_optuna",
    "open_archive",
    "parse_measure",
    "parse_measures",
    "parse_space",
    "resolved",
    "run_command",
    "serve_command",
    "shown_url",
    "study_name",
]
