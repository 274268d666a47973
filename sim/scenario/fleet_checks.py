"""What must hold between the keys of a server with several replicas."""

from __future__ import annotations

from collections.abc import Iterator

from sim.scenario.problems import Path
from sim.scenario.server import Server
from sim.scenario.units import format_duration


def check_fleet(server: Server) -> Iterator[tuple[Path, str]]:
    """Yields the path at fault and a message."""
    if server.kind != "vllm":
        several = ["replicas"] if server.replicas > 1 else []
        if server.data_parallel_size > 1 and server.kind == "static":
            several.append("data_parallel_size")
        several += [key for key in ("failures", "autoscaling", "model_switch") if getattr(server, key)]
        for key in several[:1]:
            yield ("server", key), f"several replicas are simulated of kind vllm only; got kind {server.kind}"
            return
    if server.kind == "ollama" and (server.slow_gpus or server.clock_factor < 1):
        key = "slow_gpus" if server.slow_gpus else "clock_factor"
        yield ("server", key), "GPUs that are not at their best are simulated of kind vllm only; got kind ollama"
    yield from _check_data_parallel(server)
    most = server.replicas
    scaling = server.autoscaling
    if scaling is not None:
        here: Path = ("server", "autoscaling")
        most = scaling.max
        if scaling.min > scaling.max:
            yield (*here, "min"), f"must not exceed max; got {scaling.min}; max is {scaling.max}"
        elif not scaling.min <= server.replicas <= scaling.max:
            allowed = f"autoscaling allows {scaling.min} to {scaling.max}"
            yield ("server", "replicas"), f"the start lies outside the limits; got {server.replicas}; {allowed}"
        if scaling.metric == "kv" and scaling.target > 1:
            yield (*here, "target"), f"a share of the KV cache is at most 1; got {scaling.target:g}"
    yield from _check_places(server, most)


def _check_places(server: Server, most: int) -> Iterator[tuple[Path, str]]:
    """Yields the slow GPUs and the failures of replicas that are not there, or whose times are in disorder."""
    for index, slow in enumerate(server.slow_gpus):
        spot: Path = ("server", "slow_gpus", index)
        if slow.replica >= most:
            yield (*spot, "replica"), f"replicas are counted from 0 to {most - 1}; got {slow.replica}"
        if slow.until is not None and slow.until <= slow.after:
            got = f"got {format_duration(slow.until)}; after is {format_duration(slow.after)}"
            yield (*spot, "until"), f"must lie after its beginning; {got}"
    for index, failure in enumerate(server.failures):
        place: Path = ("server", "failures", index)
        if failure.replica >= most:
            yield (*place, "replica"), f"replicas are counted from 0 to {most - 1}; got {failure.replica}"
        if failure.restart is not None and failure.restart < failure.noticed_after:
            got = f"got {format_duration(failure.noticed_after)}; restart is {format_duration(failure.restart)}"
            yield (*place, "noticed_after"), f"a replica is noticed before it is back; {got}"


def _check_data_parallel(server: Server) -> Iterator[tuple[Path, str]]:
    """Yields what does not go with several engines in one server."""
    dp, here = server.data_parallel_size, ("server", "data_parallel_size")
    both = [key for key in ("autoscaling", "failures", "model_switch", "slow_gpus") if getattr(server, key)]
    if dp == 1 or server.kind != "vllm":
        return
    if server.replicas > 1:
        yield here, f"not together with several replicas; got {dp} engines, {server.replicas} replicas"
    elif both:
        yield ("server", both[0]), f"not together with data_parallel_size; got {dp} engines in one server"
