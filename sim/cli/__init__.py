"""The `headcount` command: one file a command. The only place that prints and exits.

Every command imports what it needs inside itself, so that `headcount --help` answers at once.
"""

from __future__ import annotations

from sim.cli.app import main

__all__ = ["main"]
