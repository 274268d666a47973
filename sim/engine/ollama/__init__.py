"""An Ollama server: slots, loads, evictions and batches by the rules of its release.

Start reading at `engine.py`; then `scheduler.py` (who gets a model), `runner.py` (who gets a slot), `batching.py` (what
goes into a batch), `placement.py` (what fits). `rules.py` says what each release does differently.
"""
