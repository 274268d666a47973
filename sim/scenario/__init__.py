"""Scenarios: what is served, to whom, and what is promised, read from one YAML file.

`model.py` is the data, `load.py` reads it and says in one line what is wrong with a file. This package imports nothing
but pydantic and ruamel.yaml, so that checking a file stays quick.
"""
