"""Where optional reference data lies: HEADCOUNT_SHARED, or the folder `shared` beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).parents[4] / "shared")
