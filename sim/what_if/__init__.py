"""What each flag does: one changed at a time, on the same requests, with an interval from paired differences.

Start reading at `run.py`. `changes.py` says what is changed, `effect.py` how an effect is told from chance.
"""

from __future__ import annotations

from sim.what_if.changes import Change, default_changes, parse_changes
from sim.what_if.effect import Effect, effect_of
from sim.what_if.run import ChangeResult, WhatIf, WhatIfProgress, WhatIfResult

__all__ = [
    "Change",
    "ChangeResult",
    "Effect",
    "WhatIf",
    "WhatIfProgress",
    "WhatIfResult",
    "default_changes",
    "effect_of",
    "parse_changes",
]
