"""Writes scenarios/traces/made_conversations.jsonl: 200 made-up requests in the format of the Mooncake traces.

A line holds `timestamp` (milliseconds from the start), `input_length` and `output_length` (tokens) and `hash_ids`, one
id for each 512 tokens of the prompt; equal leading ids mean an equal prefix, and a last partial block has an id of its
own. Conversations begin at random, every one with the same 512-token system prompt, and each turn carries the turns
and answers before it.

    python tests/sim/scenario/made_trace.py > scenarios/traces/made_conversations.jsonl
"""

from __future__ import annotations

import json
import random
import sys
from itertools import count

BLOCK = 512
NUM_REQUESTS = 200


def made_trace(seed: int = 20250228) -> str:
    """Returns the trace as text, one JSON object a line, in order of time."""
    draw = random.Random(seed)
    fresh_id = count(1)  # 0 is the system prompt, which all share
    rows: list[dict[str, object]] = []
    started_s = 0.0
    while len(rows) < 3 * NUM_REQUESTS:
        started_s += draw.expovariate(1 / 9)
        sent_s, whole_blocks, length = started_s, [0], BLOCK
        for _ in range(draw.randint(1, 8)):
            length += int(draw.lognormvariate(6.0, 1.2)) + 1
            answer = min(2000, int(draw.lognormvariate(5.3, 0.8)) + 1)
            while len(whole_blocks) < length // BLOCK:
                whole_blocks.append(next(fresh_id))
            ids = [*whole_blocks, next(fresh_id)] if length % BLOCK else list(whole_blocks)
            timestamp = int(sent_s * 1000)
            rows.append({"timestamp": timestamp, "input_length": length, "output_length": answer, "hash_ids": ids})
            length += answer
            sent_s += 0.02 * answer + draw.lognormvariate(3.4, 0.8)
    rows.sort(key=lambda row: (row["timestamp"], row["hash_ids"]))
    return "".join(json.dumps(row) + "\n" for row in rows[:NUM_REQUESTS])


if __name__ == "__main__":
    sys.stdout.write(made_trace())
