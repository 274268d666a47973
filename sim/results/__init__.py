"""What a run leaves behind, and the numbers a person reads from it. Start with `records.py`, then `metrics.py`."""
