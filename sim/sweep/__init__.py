"""Many runs at once: every combination of the values given, on all cores or on a cluster, resumed where it stopped.

Start reading at `run.py`. `axes.py` and `points.py` say what is simulated, `kept.py` what need not be simulated again,
`rows.py` and `tables.py` what comes out.
"""

from __future__ import annotations

from sim.sweep.axes import Axis, parse_axes
from sim.sweep.kept import KeptRuns
from sim.sweep.points import SweepPoint, plan_points
from sim.sweep.run import PointResult, Sweep, SweepProgress, SweepRun
from sim.sweep.tables import SweepTable

__all__ = [
    "Axis",
    "KeptRuns",
    "PointResult",
    "Sweep",
    "SweepPoint",
    "SweepProgress",
    "SweepRun",
    "SweepTable",
    "parse_axes",
    "plan_points",
]
