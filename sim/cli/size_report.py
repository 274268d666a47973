"""How `headcount size` shows a budget: a table for people, an object for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sim.memory import KvPool, MemoryBudget, ServerSpec

_PARTS = (
    ("weights_gib", "- weights"),
    ("activation_gib", "- activation peak"),
    ("non_torch_gib", "- non-torch"),
    ("graphs_gib", "- CUDA graphs"),
)


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """A model on a GPU."""

    model: str
    gpu: str
    server: ServerSpec
    budget: MemoryBudget

    @property
    def refusal(self) -> str | None:
        """Why it would not start."""
        return self.budget.refusal

    def as_text(self) -> str:
        """Returns the table, the pool and the verdict."""
        lines = [_title(self.model, self.gpu, self.server), ""]
        lines += self._parts()
        lines += ["", *self._pool(), ""]
        lines += [f"note: {warning}" for warning in self.budget.warnings]
        verdict = "starts" if self.refusal is None else f"does not start: {self.refusal}"
        return "\n".join([*lines, verdict])

    def _parts(self) -> list[str]:
        budget = self.budget
        share = f"x utilization {budget.utilization:g}"
        rows = [
            ("GPU memory", budget.total_gib, ""),
            (share, budget.total_gib * budget.utilization, self._default("gpu_memory_utilization") or "given"),
        ]
        outright = "kv_cache_gib" not in budget.estimated and bool(budget.estimated)
        if not outright:
            rows += [(label, getattr(budget, name), self._origin(name)) for name, label in _PARTS]
        rows.append(("KV cache", budget.kv_cache_gib, "given" if outright else self._origin("kv_cache_gib")))
        return [f"{label:<22}{gib:>9.2f} GiB  {remark}".rstrip() for label, gib, remark in rows]

    def _pool(self) -> list[str]:
        budget, flags = self.budget, self.budget.flags
        per_gpu = " a GPU" if self.server.tensor_parallel_size * self.server.pipeline_parallel_size > 1 else ""
        rows = [
            ("KV bytes per token", f"{budget.kv_bytes_per_token:,}{per_gpu}"),
            ("blocks", f"{budget.num_gpu_blocks:,} of {budget.block_size} tokens"),
            ("tokens", f"{budget.kv_tokens:,}"),
            ("longest context", f"{budget.longest_context:,}"),
            ("max_model_len", f"{flags.max_model_len:,}{self._default('max_model_len', ' ')}"),
            ("max_num_seqs", f"{budget.max_num_seqs:,}{self._default('max_num_seqs', ' ')}"),
            (
                "max_num_batched_tokens",
                f"{flags.max_num_batched_tokens:,}{self._default('max_num_batched_tokens', ' ')}",
            ),
        ]
        kinds = {group.kind for group in budget.kv_groups}
        if len(budget.kv_groups) > 1 or kinds != {"full"}:
            groups = ", ".join(_group(group.kind, group.window, group.num_layers) for group in budget.kv_groups)
            rows.insert(1, ("KV groups", groups))
        return [*(f"{label:<24}{value}" for label, value in rows), "", budget.max_concurrency_line]

    def _default(self, flag: str, before: str = "") -> str:
        return f"{before}default" if flag in self.budget.flags.defaulted else ""

    def _origin(self, part: str) -> str:
        if part == "graphs_gib" and self.budget.graphs_gib == 0:
            return "not deducted"
        return "estimate" if part in self.budget.estimated else "given"

    def as_json(self) -> dict[str, Any]:
        """Returns every number of the budget under its own name."""
        budget = self.budget
        sizes = ("total_gib", "utilization", *(name for name, _ in _PARTS), "kv_cache_gib", "max_concurrency")
        counts = (
            "kv_bytes_per_token",
            "block_size",
            "num_gpu_blocks",
            "kv_tokens",
            "max_concurrency_line",
            "max_model_len",
            "longest_context",
            "max_num_seqs",
            "max_num_seqs_by_state_blocks",
        )
        flags = asdict(budget.flags)
        defaulted = flags.pop("defaulted")
        return {
            "model": self.model,
            "gpu": self.gpu,
            "vllm_version": self.server.version,
            "tensor_parallel_size": self.server.tensor_parallel_size,
            "pipeline_parallel_size": self.server.pipeline_parallel_size,
            "starts": self.refusal is None,
            "refusal": self.refusal,
            **{name: round(getattr(budget, name), 4) for name in sizes},
            **{name: getattr(budget, name) for name in counts},
            "kv_groups": [asdict(group) for group in budget.kv_groups],
            "estimated": list(budget.estimated),
            "warnings": list(budget.warnings),
            "flags": flags,
            "defaulted_flags": sorted(defaulted),
        }


@dataclass(frozen=True, slots=True)
class PoolReport:
    """A KV cache of which only its bytes are known."""

    server: ServerSpec
    kv_cache_gib: float
    pool: KvPool

    @property
    def refusal(self) -> str | None:
        """Why it would not start: no pool, or one shorter than max_model_len."""
        length = self.server.flags.max_model_len or 0
        if self.pool.longest >= length:
            return None
        return f"the pool holds requests of {self.pool.longest} tokens, --max-model-len is {length}"

    def as_text(self) -> str:
        """Returns the pool and the verdict."""
        rows = [
            ("KV cache", f"{self.kv_cache_gib:.2f} GiB"),
            ("KV bytes per token", f"{self.server.memory.kv_bytes_per_token:,.0f}"),
            ("blocks", f"{self.pool.num_blocks:,} of {self.server.flags.block_size or 16} tokens"),
            ("tokens", f"{self.pool.tokens:,}"),
            ("longest context", f"{self.pool.longest:,}"),
        ]
        verdict = "starts" if self.refusal is None else f"does not start: {self.refusal}"
        return "\n".join([*(f"{label:<24}{value}" for label, value in rows), "", self.pool.line, "", verdict])

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers of the pool."""
        return {
            "vllm_version": self.server.version,
            "starts": self.refusal is None,
            "refusal": self.refusal,
            "kv_cache_gib": round(self.kv_cache_gib, 4),
            "kv_bytes_per_token": self.server.memory.kv_bytes_per_token,
            "block_size": self.server.flags.block_size or 16,
            "num_gpu_blocks": self.pool.num_blocks,
            "kv_tokens": self.pool.tokens,
            "max_concurrency": round(self.pool.max_concurrency, 4),
            "max_concurrency_line": self.pool.line,
            "max_model_len": self.server.flags.max_model_len,
            "longest_context": self.pool.longest,
        }


def _title(model: str, gpu: str, server: ServerSpec) -> str:
    degrees = [("TP", server.tensor_parallel_size), ("PP", server.pipeline_parallel_size)]
    count = server.tensor_parallel_size * server.pipeline_parallel_size
    if count == 1:
        return f"{model} on {gpu}, vLLM {server.version}"
    split = ", ".join(f"{name} {degree}" for name, degree in degrees if degree > 1)
    return f"{model} on {count}x {gpu} ({split}), vLLM {server.version}; sizes of one GPU"


def _group(kind: str, window: int | None, num_layers: int) -> str:
    return f"{num_layers} {kind} {window}" if window else f"{num_layers} {kind}"
