"""Hypothesis draws the same examples every time; `HEADCOUNT_FUZZ=20` draws new ones, twenty times as many.

A shell that starts a job in the background has it ignore Ctrl-C; some tests press it, so here it works again.
"""

import signal

from hypothesis import HealthCheck, settings

from tests.factories import FUZZ

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile(
    "fuzz", deadline=None, max_examples=100 * FUZZ, suppress_health_check=list(HealthCheck), print_blob=True
)
settings.load_profile("fuzz" if FUZZ > 1 else "ci")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
