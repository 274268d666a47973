"""Small scenarios for sweeps."""

from __future__ import annotations

from pathlib import Path

USERS = """
name: tiny
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090, flags: {max_model_len: 4096, max_num_seqs: 8}}
workload:
  kind: users
  classes:
    - name: chat
      first_prompt_tokens: 500
      next_prompt_tokens: 100
      output_tokens: 50
      turns: 4
      think_time: {exponential: {mean: 5s}}
objectives: [ttft.p95 <= 1s, errors <= 1%]
search: {vary: users, from: 4, to: 64}
run: {duration: 20s, seeds: 2}
"""


def write(folder: Path, text: str = USERS, *, name: str = "tiny.yaml", changes: dict[str, str] | None = None) -> Path:
    """Writes a scenario file, with texts replaced, and returns its path."""
    for old, new in (changes or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path
