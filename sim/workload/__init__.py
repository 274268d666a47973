"""Workloads: the clients' side. They produce requests, watch them end, and decide what is sent next.

`client.py` holds what the engine's side sees: a request and the protocol. `open_loop.py`, `closed_loop.py` and
`users.py` are the three behaviours, `requests.py` and `replay.py` the places where requests come from, and `build.py`
turns a scenario into one of them. Nothing is imported here: numpy is loaded when a workload is built, not before.
"""
