"""How a runner fills a batch: which of its slots put how many tokens into the next one.

Neither kind has a token budget that decodes share fairly: llama-server lets every answer go on and gives what is left
to prompts; the Go runner before it goes round, and a long prompt whose turn it is takes the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.engine.ollama.request import OllamaRequest

Work = list[tuple[OllamaRequest, int]]
"""Requests with the tokens each puts into the batch, in the order of the batch."""


def decode_first(running: Sequence[OllamaRequest | None], num_batch: int) -> Work:
    """Fills a batch as llama-server does (update_slots): the next token of every answer, then prompts in slot order.

    Args:
        running: the request in each slot.
        num_batch: tokens of a batch.
    """
    work: Work = []
    prompts = []
    for request in running:
        if request is None:
            continue
        if request.prompt_left:
            prompts.append(request)
        else:
            work.append((request, 1))
    room = num_batch - len(work)
    for request in prompts:
        if room <= 0:
            break
        tokens = min(room, request.prompt_left)
        work.append((request, tokens))
        room -= tokens
    return work


class RoundRobin:
    """Fills batches as the Go runner did (runner.go): slot after slot, from where the last batch ran out of room."""

    def __init__(self) -> None:
        self._next = 0

    def fill(self, running: Sequence[OllamaRequest | None], num_batch: int) -> Work:
        """Returns the next batch; one that found no room goes first next time."""
        work: Work = []
        room, first_without = num_batch, -1
        for turn in range(len(running)):
            place = (self._next + turn) % len(running)
            request = running[place]
            if request is None:
                continue
            tokens = min(room, request.prompt_left or 1)
            if tokens:
                work.append((request, tokens))
                room -= tokens
            elif first_without < 0:
                first_without = place
        if first_without >= 0:
            self._next = first_without
        return work
