"""vLLM releases, and those at which a rule of this package changed.

Where no release note dates a change, the release is inferred from the date of the pull request named beside it or from
logs of the releases around it; the comment says which.
"""

from __future__ import annotations

import re

from sim.errors import UserError

Version = tuple[int, int, int]

LATEST: Version = (0, 32, 0)
"""The release whose source these rules were read from; development builds count as this one."""

V1_ENGINE: Version = (0, 8, 0)
"""V1 became the default engine; before it, the rules of V0 apply."""

LARGE_GPU_SEQS: Version = (0, 8, 3)
"""1024 sequences on H100-class GPUs (PR 16158)."""

LARGE_BY_MEMORY: Version = (0, 8, 5)
"""The larger defaults for every GPU of 70 GiB or more, not by the names H100 and H200 (PR 17073)."""

A100_EXCLUDED: Version = (0, 9, 0)
"""The A100 back among the small ones (PR 17885)."""

HYBRID_GROUPS: Version = (0, 9, 1)
"""Sliding-window layers get groups of their own, and concurrency counts blocks, not tokens (PR 17996)."""

PYTORCH_SAMPLER: Version = (0, 11, 0)
"""Sampling by sorting in PyTorch whatever the installation; earlier releases used FlashInfer where it was installed."""

ASYNC_SCHEDULING: Version = (0, 14, 0)
"""Asynchronous scheduling by default (release notes of 0.14)."""

ASYNC_IN_PIPELINES: Version = (0, 16, 0)
"""Asynchronous scheduling with pipeline parallelism, also by default (release notes; those of 0.14 exclude it). 0.32
turns it off for the first model runner alone, which only an environment variable asks for."""

STATE_BLOCKS_CHECK: Version = (0, 16, 0)
"""Start refused when max_num_seqs exceeds the state blocks (issue 34094)."""

TRITON_SAMPLER: Version = (0, 17, 0)
"""Top-k/top-p in Triton, without sorting the vocabulary (PR 33538): the activation peak falls by 60 %."""

SHARED_BUFFERS: Version = (0, 18, 0)
"""Non-torch memory grows: 0.13 to 0.25 GiB alone, and about 2 GiB with tensor parallelism over NVLink (logs)."""

RESERVE_FULL_ISL: Version = (0, 19, 1)
"""A request is admitted only when its whole prompt fits (PR 37307)."""

TOKENS_FROM_CONCURRENCY: Version = (0, 21, 0)
"""The token count in the log is concurrency x max_model_len (issue 40691)."""

GRAPH_ESTIMATE: Version = (0, 21, 0)
"""CUDA graphs are deducted from the pool ("default since v0.21.0" in vLLM's own log)."""

SLIDING_ADMISSION_CAP: Version = (0, 21, 0)
"""Admission counts a sliding group by its window, not by the whole prompt (PR 40946)."""

UTILIZATION_092: Version = (0, 22, 0)
"""gpu_memory_utilization 0.92 instead of 0.9 (log of 0.22.1 without the flag)."""

V2_RUNNER: Version = (0, 23, 0)
"""The second model runner, which profiles without the top-k/top-p filter (logs of 0.23 and later)."""

NULL_BLOCK_CHECK: Version = (0, 26, 0)
"""max_model_len must fit beside the null block (PR 47272)."""

HUGE_GPU_DEFAULTS: Version = (0, 26, 0)
"""16384 tokens on GPUs of 160 GiB or more (seen first in August 2026)."""

IN_FLIGHT_TOKENS: Version = (0, 27, 0)
"""A sliding group reserves for every batch in flight, not for one (after 0.25.1, whose log still shows one)."""

ONE_LINE_LOG: Version = (0, 29, 0)
"""Tokens and concurrency on one log line."""


def parse_version(text: str) -> Version:
    """Returns (major, minor, patch) of a release's name.

    Pre-releases and local builds (`0.26.1rc1.dev156+g0eec`, `0.8.5.post1`) count as their release; a text that begins
    with `dev` as the latest one known here.

    Raises:
        UserError: not a version.
    """
    if text.strip().lower().startswith(("dev", "main", "nightly")):
        return LATEST
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?=$|[^\d.]|\.\D)", text.strip())
    if match is None:
        raise UserError(f"version: must look like 0.32 or 0.8.5, not {text!r}")
    return int(match[1]), int(match[2]), int(match[3] or 0)
