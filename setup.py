"""The optional compiled core: `make compiled` builds the hot modules with mypyc, from the same source.

Everything else about the package is in pyproject.toml. Without HEADCOUNT_COMPILE=1 nothing is compiled, and the package
is pure Python with the same results.
"""

import os
from pathlib import Path

from setuptools import setup

HOT = (
    *sorted(str(path) for path in Path("sim/core").glob("*.py") if path.stem != "__init__"),
    "sim/engine/engine_core.py",
    "sim/engine/steady_steps.py",
    "sim/engine/engine_time.py",
    "sim/engine/step_time.py",
    "sim/engine/roofline.py",
    "sim/engine/fitted.py",
    "sim/engine/recorded.py",
    "sim/api_server.py",
    "sim/records.py",
    "sim/engine/process.py",
    # Not hot, but with a class that derives from a compiled one:
    "sim/fleet/lockstep.py",
    "calibrate/recorded_prompts.py",
    "sim/workload/client.py",
    "sim/workload/open_loop.py",
    "sim/workload/requests.py",
    "sim/workload/streams.py",
    "sim/workload/random.py",
)


def extensions() -> list:
    """Returns the modules to compile: none, unless asked."""
    if os.environ.get("HEADCOUNT_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify([*HOT], opt_level="3", debug_level="0")


setup(ext_modules=extensions())
