"""Whose tokens took the engine's time: a step's duration is divided among its tokens, each the same part.

Exact with the decode pool too. A pooled request gets one token in every completed step from the one after it was last
listed, without a gap, until it is listed again (`sim/core/decode_pool.py`). So its part is a difference of two running
sums, and the number of tokens it gained says how many steps these are.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate

from sim.core.request import Request
from sim.engine.engine_core import InFlightBatch, StepOutputs
from sim.engine.steady_steps import SteadySteps


@dataclass(slots=True)
class _Account:
    """What a request took up to the last completed step that listed it."""

    picoseconds: int = 0
    step: int = 0  # completed steps, that one included
    num_output_tokens: int = 0


class EngineTime:
    """Adds up, request by request, its part of every step it was in."""

    def __init__(self) -> None:
        self._total_ps = 0
        self._until_ps = array("q", [0])  # of one token in each of the first n steps together
        self._accounts: dict[Request, _Account] = {}

    def add(self, batch: InFlightBatch, outputs: StepOutputs) -> None:
        """Takes in a completed step, which must not be empty; every step of the run must come here, in order."""
        per_token = (batch.end_ns - batch.start_ns) * 1000 // (batch.num_prefill_tokens + batch.num_decodes)
        if batch.output.num_scheduled_tokens:
            self._add_listed(batch, outputs, per_token)
        self._total_ps += per_token
        self._until_ps.append(self._total_ps)

    def add_steady(self, steps: SteadySteps) -> None:
        """Takes in steps that were made ahead, in which nobody is listed."""
        num_decodes = steps.num_decodes
        times = [
            (end_ns - start_ns) * 1000 // num_decodes
            for start_ns, end_ns in zip(steps.start_ns, steps.end_ns, strict=True)
        ]
        until_ps = list(accumulate(times, initial=self._total_ps))
        self._total_ps = until_ps[-1]
        self._until_ps.extend(until_ps[1:])

    def close(self, request: Request) -> int:
        """Returns the nanoseconds that a request took, and forgets it."""
        account = self._accounts.pop(request, None)
        if account is None:
            return 0
        self._catch_up(account, request.num_output_tokens)
        return account.picoseconds // 1000

    def _add_listed(self, batch: InFlightBatch, outputs: StepOutputs, per_token: int) -> None:
        """Adds the part of the requests that are not in the pool."""
        accounts, step = self._accounts, len(self._until_ps)
        for request, num_tokens in batch.output.num_scheduled_tokens.items():
            account = accounts.get(request)
            if (
                account is not None
                and num_tokens == 1
                and step - account.step == request.num_output_tokens - account.num_output_tokens
            ):
                continue  # a token in every step since it was noted last, as if it were pooled
            gained = any(other is request for other, _ in outputs.tokens)
            if account is None:
                if request.is_finished and not gained:
                    continue  # ended while this step was in flight: its account is closed
                account = accounts[request] = _Account()
            self._catch_up(account, request.num_output_tokens - gained)
            account.picoseconds += num_tokens * per_token
            account.step, account.num_output_tokens = step, request.num_output_tokens

    def _catch_up(self, account: _Account, num_output_tokens: int) -> None:
        """Adds the steps in the pool since the request was last listed: as many as it gained tokens."""
        num_pooled = num_output_tokens - account.num_output_tokens
        if num_pooled > 0 and account.step:
            account.picoseconds += self._until_ps[account.step + num_pooled] - self._until_ps[account.step]
