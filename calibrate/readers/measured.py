"""A measured run: what the client sent and what it saw, whatever tool recorded it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.errors import UserError
from sim.workload.trace import Trace

Floats = NDArray[np.float64]

MOST_S_PER_TOKEN = 5.0
"""No server worth measuring needs longer for a token (median): beyond, milliseconds were taken for seconds."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Requests in the order of sending, with the latencies that the recording has.

    Attributes:
        name: for tables, the file's name without its endings.
        requests: when each was wanted and sent, its prompt and its answer.
        ttft_s: seconds from the send to the first token, NaN where unknown; None: of no request.
        e2el_s: seconds from the send to the last token, NaN where unknown; None: of no request.
        itl_s: every gap between two tokens of a request that was recorded, in no particular order; None: none was.
        max_concurrency: the client's cap on requests in flight, where the recording says it.
        warnings: what the reader of a result must know, one sentence each.
    """

    name: str
    requests: Trace
    ttft_s: Floats | None = None
    e2el_s: Floats | None = None
    itl_s: Floats | None = None
    max_concurrency: int | None = None
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def sent_s(self) -> Floats:
        """Seconds from the start of the recording to each send."""
        return np.asarray(self.requests.sent_ns / 1e9, dtype=np.float64)

    @property
    def tpot_s(self) -> Floats | None:
        """Seconds a token after the first, (E2E − TTFT) / (output tokens − 1); NaN for answers of one token."""
        if self.ttft_s is None or self.e2el_s is None:
            return None
        gaps = self.requests.output_tokens - 1
        return np.where(gaps > 0, (self.e2el_s - self.ttft_s) / np.maximum(gaps, 1), np.nan)

    def first(self, num_requests: int) -> MeasuredRun:
        """Returns the run as if it had ended with these requests; token gaps belong to all and are left out."""
        if num_requests >= len(self):
            return self
        return MeasuredRun(
            name=self.name,
            requests=self.requests.first(num_requests),
            ttft_s=None if self.ttft_s is None else self.ttft_s[:num_requests],
            e2el_s=None if self.e2el_s is None else self.e2el_s[:num_requests],
            max_concurrency=self.max_concurrency,
            warnings=self.warnings,
        )


def measured_run(
    path: Path,
    requests: Trace,
    *,
    ttft_s: Floats | None = None,
    e2el_s: Floats | None = None,
    itl_s: Floats | None = None,
    max_concurrency: int | None = None,
    warnings: tuple[str, ...] = (),
) -> MeasuredRun:
    """Returns a run in the order of sending; the arrays come in the order of `requests`.

    Raises:
        UserError: the latencies contradict each other, or cannot be seconds.
    """
    _check_latencies(path, requests, ttft_s, e2el_s)
    order = np.argsort(requests.sent_ns, kind="stable")
    return MeasuredRun(
        name=run_name(path),
        requests=requests.take(order),
        ttft_s=None if ttft_s is None else ttft_s[order],
        e2el_s=None if e2el_s is None else e2el_s[order],
        itl_s=itl_s,
        max_concurrency=max_concurrency,
        warnings=(*requests.warnings, *warnings),
    )


def run_name(path: Path) -> str:
    """Returns a file's name without .gz and the ending before it."""
    return Path(path.name.removesuffix(".gz")).stem


def _check_latencies(path: Path, requests: Trace, ttft_s: Floats | None, e2el_s: Floats | None) -> None:
    """Refuses a first token after the last one, and times a thousand times too long: units were mixed up."""
    if ttft_s is None or e2el_s is None:
        return
    late = np.flatnonzero(ttft_s > e2el_s * (1 + 1e-9))
    if len(late):
        row = int(late[0])
        raise UserError(
            f"{path}: request {row + 1}: ttft of {ttft_s[row]:g} s is longer than e2el of {e2el_s[row]:g} s; "
            "mixed units? columns in milliseconds are called ttft_ms and e2el_ms"
        )
    gaps = np.maximum(requests.output_tokens - 1, 1)
    per_token = (e2el_s - ttft_s) / gaps
    known = per_token[~np.isnan(per_token)]
    if len(known) and np.median(known) > MOST_S_PER_TOKEN:
        raise UserError(
            f"{path}: e2el: {np.median(known):.3g} s a token (median) cannot be; mixed units? columns in milliseconds "
            "are called ttft_ms and e2el_ms"
        )
