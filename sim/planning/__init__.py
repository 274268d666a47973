"""Which and how many GPUs: the cheapest deployments that serve a load, with headroom for peaks and for a lost replica.

Start reading at `planner.py`. `candidates.py` says what is tried, `kept.py` keeps what has been simulated, `result.py`
is the answer.
"""

from __future__ import annotations

from sim.planning.candidates import Candidate, candidates
from sim.planning.planner import Plan, PlanInterruptedError, Request, make_plan
from sim.planning.result import Check, PlanRow

__all__ = [
    "Candidate",
    "Check",
    "Plan",
    "PlanInterruptedError",
    "PlanRow",
    "Request",
    "candidates",
    "make_plan",
]
