"""The largest numbers that a scenario may hold: beyond them a simulation ends in hours or in a lack of memory."""

from __future__ import annotations

MOST_USERS = 1_000_000
"""Each user has random numbers of their own: 8 kB and a quarter of a millisecond, so 8 GB and four minutes."""

MOST_REQUESTS = 10_000_000
"""Each leaves a record of up to 1 kB, so 10 GB; and thousands of them are simulated in a second, so an hour."""

MOST_SECONDS = 366 * 86_400
"""A year, holidays and all: at most of a run's length. A day of a busy server takes minutes already."""

MOST_REPLICAS = 4096
"""Each is an engine with blocks of its own. Far above what stands behind one router or in one server."""

MOST_GPUS = 1024
"""GPUs that share a layer, or stages of layers: far above the largest machine that is joined by NVLink (576)."""

MOST_SEEDS = 10_000
"""Repetitions of a load: an interval from ten thousand is a hundredth as wide as one run is uncertain."""
