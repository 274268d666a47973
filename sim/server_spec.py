"""A scenario's server as the memory budget takes it. Apart from `deployment.py`, which brings the whole engine."""

from __future__ import annotations

from sim.memory import EngineFlags, MemoryOverrides, ServerSpec
from sim.scenario.server import Server


def server_spec(server: Server) -> ServerSpec:
    """Returns the release, the parallel sizes, the flags, and what of the memory is known."""
    return ServerSpec(
        version=server.version,
        tensor_parallel_size=server.tensor_parallel_size,
        pipeline_parallel_size=server.pipeline_parallel_size,
        data_parallel_size=server.data_parallel_size,
        flags=EngineFlags(**server.flags.model_dump()),
        memory=MemoryOverrides(**server.memory.model_dump()),
    )
