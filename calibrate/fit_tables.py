"""The fit where single operators are known: a table of kernel timings, boiled down to the few terms of a profile.

What depends on the tokens of a step alone (matrix products, norms, messages between GPUs) goes into the profile's
compute table as it is, at some forty counts. Attention, which depends on four numbers at once, is priced with the table
at many made-up steps, spread over everything a server does, and the terms of the profile are fitted to those.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrate.fit_steps import StepFit, fit_steps
from calibrate.fit_terms import ModelForm, Term
from sim.engine.operator_files import read_operator_tables
from sim.engine.operator_table import Collective, OperatorTableModel
from sim.engine.step_time import Batch
from sim.models import ModelSpec

GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""What vLLM captures by default with max_num_seqs 256."""

TERMS = {
    "floor_us": 500.0,
    "per_attention_pair_ns": 5.0,
    "per_request_us": 5.0,
    "per_decode_context_token_ns": 100.0,
    "per_chunk_context_token_ns": 100.0,
    "mixed_graph_us": 500.0,
    "mixed_eager_us": 500.0,
    "per_mixed_decode_context_token_ns": 100.0,
}
"""What is fitted, and about where it starts."""

# fmt: off
_COUNTS = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 272, 304, 320, 336, 384, 400, 448, 512, 513, 528, 592,
    640,
)
# fmt: on
"""Where the table of what depends on tokens alone is read: captured sizes, and both sides of where tiles jump."""

_NUM_STEPS = 3000
_SHARE_DECODES_ONLY = 0.5
_SHARE_PROMPTS_ONLY = 0.12


@dataclass(frozen=True, slots=True)
class TableSource:
    """Operator tables, and what they do not hold.

    Attributes:
        folder: as `sim.engine.operator_files` reads it.
        model: its layers and experts.
        expert_parallel_size: GPUs over which the experts are spread.
        collectives: messages between the GPUs of the server.
        max_num_batched_tokens: the largest step.
        max_num_seqs: the most requests of a step.
        longest_context: tokens of the longest context that steps are made of.
    """

    folder: Path
    model: ModelSpec
    expert_parallel_size: int = 1
    collectives: tuple[Collective, ...] = ()
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    longest_context: int = 8192

    def step_model(self) -> OperatorTableModel:
        """Returns the model that looks every step up.

        Raises:
            UserError: a table is missing or not as described.
        """
        tables = read_operator_tables(self.folder, self.model, self.expert_parallel_size)
        return OperatorTableModel(tables, graph_sizes=GRAPH_SIZES, collectives=self.collectives)


def fit_tables(source: TableSource) -> StepFit:
    """Fits the terms of a profile to operator tables; residuals are those of made-up steps priced by the tables.

    Raises:
        UserError: a table is missing or not as described.
    """
    model = source.step_model()
    steps = [(batch, float(model.step_time(batch))) for batch in made_steps(source, seed=0)]
    form = ModelForm(
        graph_sizes=GRAPH_SIZES,
        fixed={"compute_table_us": compute_table(model, source.max_num_batched_tokens), "overlap": 0.0},
    )
    terms = tuple(Term(key, start, 10.0) for key, start in TERMS.items())
    return fit_steps(steps, terms, form)


def compute_table(model: OperatorTableModel, most: int) -> tuple[tuple[int, float], ...]:
    """Returns (tokens, microseconds) of everything that depends on the tokens of a step alone."""
    beyond = range(_COUNTS[-1] + 64, most + 1, 128)
    counts = sorted({*(count for count in _COUNTS if count <= most), *beyond, most})
    one = model.sequences_ns(1)
    return tuple((count, float(f"{(model.tokens_ns(count) + one) / 1e3:.5g}")) for count in counts)


def made_steps(source: TableSource, seed: int) -> list[Batch]:
    """Draws steps: decodes alone, prompts alone, and both, over all sizes and contexts, each size as likely by its
    logarithm."""
    rng = np.random.default_rng(seed)
    return [_made_step(source, rng) for _ in range(_NUM_STEPS)]


def _made_step(source: TableSource, rng: np.random.Generator) -> Batch:
    kind = rng.random()
    decodes = 0 if kind < _SHARE_PROMPTS_ONLY else _log_uniform(rng, 1, source.max_num_seqs)
    middle = _log_uniform(rng, 64, source.longest_context // 2)
    spread = np.exp(0.5 * rng.standard_normal(decodes))
    contexts = np.clip(np.rint(middle * spread), 1, source.longest_context).astype(int).tolist()
    chunks: list[tuple[int, int]] = []
    if not decodes or kind > _SHARE_PROMPTS_ONLY + _SHARE_DECODES_ONLY:
        left = source.max_num_batched_tokens - decodes
        for _ in range(int(rng.integers(1, 4))):
            tokens = min(left, _log_uniform(rng, 16, source.max_num_batched_tokens))
            if tokens > 1:
                earlier = 0 if rng.random() < 0.75 else _log_uniform(rng, 16, source.longest_context // 2)
                chunks.append((tokens, earlier))
                left -= tokens
    return Batch.of(contexts, chunks)


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
