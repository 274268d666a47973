"""Moved to `sim.records`."""

from sim.records import ItlLog, Outcome, RequestRecord, RunRecord, StepLog

__all__ = ["ItlLog", "Outcome", "RequestRecord", "RunRecord", "StepLog"]
