"""The shipped profiles that come from published measurements: how each of them was made.

    python -m calibrate.published FOLDER [NAME...] [--jobs N]

FOLDER holds the measurements in the layout that each function names; they are not part of this repository, the sources
are stated in the profiles. Profiles are written to `calibrate/profiles/`. Expect some minutes of CPU time each.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from calibrate.comparison import Comparison, compare, predicted_latencies
from calibrate.fit import PREDICTED, FitOptions, FitOutcome, fit, fit_operator_tables, rounded, step_outcome
from calibrate.fit_requests import Progress
from calibrate.fit_steps import fit_steps
from calibrate.fit_terms import MIXED_TERMS, MOE, REQUEST_TERMS, ModelForm, Term
from calibrate.readers import read_runs
from calibrate.readers.ladder import Key
from calibrate.replay import simulate_requests
from calibrate.replay_server import ServerChoice, describe_server
from sim.engine.operator_table import Collective
from sim.engine.profile import PROFILES_DIR, ErrorTable, MeasuredError, save_profile
from sim.engine.profile_terms import FittedStepTime
from sim.engine.step_time import Batch

DATE = datetime.date(2026, 11, 29)

_LATENCIES = ("ttft_ms", "tpot_ms", "e2el_ms")
_SAME_SENDS: dict[Key, float] = {(metric, s): 0.7 for metric in _LATENCIES for s in ("mean", "p50", "p90", "p99")}
_SAME_SENDS["request_throughput_per_s", None] = 0.7

QWEN_H100_SPREAD: dict[Key, float] = _SAME_SENDS | {("ttft_ms", "p99"): 4.8}
"""How far two servers differ on the same sends, as published with the runs: 0.7 % in the median, TTFT P99 to 4.8 %."""

QWEN_H100_RUNS = ("rate2", "rate4", "rate6", "mixed6", "saturated18")


_NCCL_NOTE = (
    "Messages between the two GPUs (PCIe 5, NCCL in CUDA graphs) take the times measured in the same repository, "
    "profiler/perf/RTXPRO6000/hardware.yaml; vLLM's own all-reduce may be faster for small ones."
)
_ALL_REDUCE_US = {10_240: 12.9, 40_960: 14.6, 327_680: 22.8, 1_310_720: 47.5, 5_242_880: 155.0, 20_971_520: 587.0}
_ALL_GATHER_US = {4_096: 10.5, 65_536: 13.6, 262_144: 18.8, 1_048_576: 45.8, 4_194_304: 142.0, 8_388_608: 277.0}
_REDUCE_SCATTER_US = {4_096: 9.8, 65_536: 12.7, 262_144: 21.1, 1_048_576: 49.3, 2_097_152: 88.4}
"""Microseconds by bytes."""


def qwen3_14b_h100(folder: Path, jobs: int, progress: Progress) -> FitOutcome:
    """Fits Qwen3-14B on one H100 to five runs of known requests (`qwen3-14b-h100/*.csv.gz`, `server.json`)."""
    place = folder / "qwen3-14b-h100"
    server = describe_server({"model": "Qwen/Qwen3-14B", "gpu": "h100-80gb"}, place / "server.json")
    options = FitOptions(
        name="qwen3-14b-h100",
        description="Qwen3-14B bf16 on one H100 80 GB, vLLM 0.23.0, from five published runs.",
        source=(
            "Published runs of one server: Poisson clients with at most 256 requests in flight, about 600 s each, "
            "1024-token prompts at 2, 4, 6 and 18 requests/s and a mix of 256 and 4096 tokens at 6/s, 128 tokens out."
        ),
        date=DATE,
        terms=(*REQUEST_TERMS, *MIXED_TERMS),
        window_s=(60.0, 600.0),
        spread=QWEN_H100_SPREAD,
        jobs=jobs,
        notes=(
            "Errors are of predictions: each run was left out of the fit that predicts it here.",
            "The first 20 s of saturated18 were slower on the real server than any setting of the terms explains "
            "(stalls of about 0.1 s while load came up); its first tenth was not fitted, but is in the errors.",
            "TTFT of a saturated run of equal requests depends on chance: requests that end together are replaced "
            "together, so groups formed in the first minute persist to the end.",
            "The centre of the prior of per_mixed_decode_context_token_ns was chosen with all runs in view.",
        ),
    )
    return fit([place / f"{name}.csv.gz" for name in QWEN_H100_RUNS], server, options, progress)


def gpt_oss_120b_h200(folder: Path, jobs: int, progress: Progress) -> FitOutcome:
    """Fits gpt-oss-120b on one H200 to a ladder of closed loops (`gptoss120b-h200/ladder.csv`)."""
    flags = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 10240,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": False,
        "num_gpu_blocks_override": 103_690,
    }
    server = describe_server({"model": "openai/gpt-oss-120b", "gpu": "h200", "version": "0.22.0", "flags": flags})
    terms = tuple(term for term in REQUEST_TERMS if term != "client.per_prompt_token_us")
    options = FitOptions(
        name="gpt-oss-120b-h200",
        description="gpt-oss-120b MXFP4 on one H200 141 GB, vLLM 0.22.0, from a published ladder.",
        source=(
            "Published `vllm bench serve` totals: closed loops of 1, 4, 16 and 64 requests, about 7200 tokens in and "
            "900 out, lengths uniform in [0.8 L, L]."
        ),
        date=DATE,
        terms=(*terms, MOE),
        form=ModelForm(num_experts=128, experts_per_token=4, moe_exponent=0.9),
        length_spread=1 / 9,
        spread=dict.fromkeys(((metric, s) for metric in (*_LATENCIES, "itl_ms") for s in ("mean", "p50")), 0.25),
        jobs=jobs,
        notes=(
            "Errors are of predictions: each rung was left out of the fit that predicts it here.",
            "The requests themselves are not known; lengths are drawn with the stated means.",
            "The exponent of the experts' floor was set by hand, with all rungs in view: reading the first few experts "
            "does not fill the memory system. Attention, reads and decodes lean on the data sheet where rungs are few.",
            "The KV pool of 103,690 blocks is the one that the server's log states.",
        ),
    )
    return fit([folder / "gptoss120b-h200" / "ladder.csv"], server, options, progress)


def qwen2_5_3b_a10g(folder: Path, _jobs: int, _progress: Progress) -> FitOutcome:
    """Fits Qwen2.5-3B on one A10G to tables of mean step durations (`a10g-steps/*.csv`)."""
    steps = _a10g_steps(folder / "a10g-steps")
    starts = {
        "floor_us": 15_000.0,
        "per_token_us": 90.0,
        "per_attention_pair_ns": 5.0,
        "per_decode_us": 100.0,
        "per_decode_context_token_ns": 70.0,
        "per_mixed_decode_context_token_ns": 300.0,
        "mixed_graph_us": 10_000.0,
        "mixed_eager_us": 7_000.0,
        "overlap": 0.5,
    }
    form = ModelForm(graph_sizes=(1, 2, 4, *range(8, 129, 8)))
    terms = tuple(Term(key, start, 2.0) for key, start in starts.items())
    found = fit_steps(steps, terms, form, weights=[1.0] * len(steps))
    server = describe_server(
        {
            "model": "Qwen/Qwen2.5-3B-Instruct",
            "gpu": "a10g",
            "version": "0.27.1",
            "flags": {"max_num_batched_tokens": 2048, "async_scheduling": False},
        }
    )
    options = FitOptions(
        name="qwen2.5-3b-a10g",
        description="Qwen2.5-3B on one A10G (24 GB), vLLM 0.27.1, synchronous, from tables of step durations.",
        source=(
            "Published step timings (github.com/lkhun9311/gpu-platform-control-plane, docs/superpowers/specs/data): "
            "means by composition over 121,814 steps. The model is believed to be Qwen2.5-3B-Instruct."
        ),
        date=DATE,
        data=("decode_steps, decode_context_effect, prefill_only_steps and mixed_steps, mean milliseconds",),
        notes=(
            "Fitted to mean durations by composition, one row each; later chunks of a prompt are left out (their "
            "contexts are not stated).",
            "Small mixed steps (up to 128 tokens, within captured graphs) are off by up to 40 %: their published means "
            "contradict each other (5 tokens 31.6 ms, 7 tokens 21.4 ms).",
        ),
    )
    return step_outcome(found, server, options, [Path("a10g-steps")])


def llama_3_1_8b_rtx_4090(folder: Path, _jobs: int, _progress: Progress) -> FitOutcome:
    """Boils down the operator tables of Llama-3.1-8B on one RTX 4090, and compares with a run nothing was fitted to."""
    place = folder / "llmservingsim"
    server = _table_server("meta-llama/Llama-3.1-8B", "rtx-4090", num_gpu_blocks_override=2588)
    options = _table_options(
        "llama-3.1-8b-rtx-4090",
        "Llama-3.1-8B bf16 on one RTX 4090 (24 GB), vLLM 0.19.0, from operator timings.",
        "The errors are of a run of the real server that no number here was fitted to: 300 conversations at 10/s.",
    )
    outcome = fit_operator_tables(place / "profiler/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1", server, options)
    prompts = place / "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"
    (run,) = read_runs(place / "rtx4090-llama-3.1-8b" / "requests.jsonl", prompts=prompts)
    deployment = server.plan()
    record = simulate_requests(run.requests, deployment, outcome.profile.step_time_model(), outcome.profile.latency())
    rows = error_rows(compare(run, predicted_latencies(record), record))
    errors = ErrorTable(run="300 requests at 10/s", band="saturated", held_out=True, rows=rows)
    return FitOutcome(
        outcome.profile.model_copy(update={"calibrated": True, "errors": (errors, *outcome.profile.errors)}),
        outcome.report,
    )


_STEP_GAP_US = 125.0
_UNEQUAL_CONTEXTS = 1.02
_GAP_NOTE = (
    "The real steps of Llama-3.1-8B on an RTX 4090 took some 0.25 ms more than their operators (gaps between kernels, "
    "decodes of unequal contexts, which the tables do not hold). About half of it is put here into each step, half "
    "into reads of decodes' contexts, 2 % more."
)


def _with_gaps(outcome: FitOutcome) -> FitOutcome:
    """Adds what a run on another GPU showed operators to leave out (`_GAP_NOTE`)."""
    step_time = outcome.profile.step_time
    assert isinstance(step_time, FittedStepTime)
    floor, read = step_time.floor_us, step_time.per_decode_context_token_ns
    changed = {
        "floor_us": floor.model_copy(update={"value": rounded(floor.value + _STEP_GAP_US)}),
        "per_decode_context_token_ns": read.model_copy(update={"value": rounded(read.value * _UNEQUAL_CONTEXTS)}),
    }
    notes = (*outcome.profile.notes, _GAP_NOTE)
    update = {"step_time": step_time.model_copy(update=changed), "notes": notes}
    return FitOutcome(outcome.profile.model_copy(update=update), outcome.report)


def llama_3_1_8b_rtx_pro_6000(folder: Path, _jobs: int, _progress: Progress) -> FitOutcome:
    """Boils down the operator tables of Llama-3.1-8B on one RTX PRO 6000."""
    options = _table_options(
        "llama-3.1-8b-rtx-pro-6000",
        "Llama-3.1-8B bf16 on one RTX PRO 6000 Blackwell (96 GB), vLLM 0.19.0, from operator timings.",
    )
    place = folder / "llmservingsim/profiler/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1"
    return _with_gaps(fit_operator_tables(place, _table_server("meta-llama/Llama-3.1-8B", "rtx-pro-6000"), options))


def qwen3_32b_rtx_pro_6000_tp2(folder: Path, _jobs: int, _progress: Progress) -> FitOutcome:
    """Boils down the operator tables of Qwen3-32B on two RTX PRO 6000, tensor parallel."""
    options = _table_options(
        "qwen3-32b-rtx-pro-6000-tp2",
        "Qwen3-32B bf16 on two RTX PRO 6000 Blackwell, tensor parallel over PCIe, vLLM 0.19.0, from operator timings.",
        _NCCL_NOTE,
    )
    server = _table_server("Qwen/Qwen3-32B", "rtx-pro-6000", tensor_parallel_size=2)
    # Two in each of 64 layers, 10,240 bytes a token.
    collectives = (Collective(128, _by_tokens(_ALL_REDUCE_US, 10_240)),)
    place = folder / "llmservingsim/profiler/RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2"
    return _with_gaps(fit_operator_tables(place, server, options, collectives))


def qwen3_30b_a3b_rtx_pro_6000_dp2(folder: Path, _jobs: int, _progress: Progress) -> FitOutcome:
    """Boils down the operator tables of Qwen3-30B-A3B on two RTX PRO 6000, the experts spread over both."""
    options = _table_options(
        "qwen3-30b-a3b-rtx-pro-6000-dp2",
        "Qwen3-30B-A3B bf16 on two RTX PRO 6000 Blackwell, data and expert parallel, vLLM 0.19.0, operator timings.",
        _NCCL_NOTE,
        "Two ranks, each with a scheduler of its own, step together: a step takes as long as the attention of the "
        "slower rank and, beyond captured graphs, the mean tokens of both do.",
    )
    server = _table_server(
        "Qwen/Qwen3-30B-A3B-Instruct-2507", "rtx-pro-6000", data_parallel_size=2, enable_expert_parallel=True
    )
    # One of each in each of 48 layers, 4,096 bytes a token of this rank.
    collectives = (
        Collective(48, _by_tokens(_ALL_GATHER_US, 4_096)),
        Collective(48, _by_tokens(_REDUCE_SCATTER_US, 4_096)),
    )
    place = folder / "llmservingsim/profiler/RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16/tp1"
    return _with_gaps(fit_operator_tables(place, server, options, collectives))


PUBLISHED: dict[str, Callable[[Path, int, Progress], FitOutcome]] = {
    "qwen3-14b-h100": qwen3_14b_h100,
    "gpt-oss-120b-h200": gpt_oss_120b_h200,
    "qwen2.5-3b-a10g": qwen2_5_3b_a10g,
    "llama-3.1-8b-rtx-4090": llama_3_1_8b_rtx_4090,
    "llama-3.1-8b-rtx-pro-6000": llama_3_1_8b_rtx_pro_6000,
    "qwen3-32b-rtx-pro-6000-tp2": qwen3_32b_rtx_pro_6000_tp2,
    "qwen3-30b-a3b-rtx-pro-6000-dp2": qwen3_30b_a3b_rtx_pro_6000_dp2,
}


def error_rows(table: Comparison) -> tuple[MeasuredError, ...]:
    """Returns a comparison's numbers as a profile's error table has them."""
    return tuple(
        MeasuredError(
            metric=row.metric,  # type: ignore[arg-type]  # Row names them as MeasuredError does
            statistic=row.statistic,
            measured=float(f"{row.measured:.5g}"),
            predicted=float(f"{row.predicted:.5g}"),
        )
        for row in table.rows
        if row.measured is not None
        and row.predicted is not None
        and (row.statistic in PREDICTED or row.statistic is None)
    )


def _by_tokens(table: Mapping[int, float], bytes_per_token: int) -> tuple[tuple[int, float], ...]:
    """Returns (tokens, nanoseconds) of a table by bytes."""
    return tuple((size // bytes_per_token, 1e3 * us) for size, us in table.items())


def _table_server(model: str, gpu: str, **changes: int | bool) -> ServerChoice:
    flags: dict[str, int | bool] = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "max_model_len": 32_768,
        "enable_prefix_caching": True,
        "scheduler_reserve_full_isl": True,
    }
    sizes = {key: value for key, value in changes.items() if key.endswith("_parallel_size")}
    flags |= {key: value for key, value in changes.items() if key not in sizes}
    return describe_server({"model": model, "gpu": gpu, "version": "0.19.0", "flags": flags, **sizes})


def _table_options(name: str, description: str, *notes: str) -> FitOptions:
    return FitOptions(
        name=name,
        description=description,
        data=("operators of one layer by tokens, sequences and attention's composition",),
        source=(
            "Operator timings taken inside vLLM 0.19.0 on this kind of GPU, published with LLMServingSim "
            "(github.com/casys-kaist/LLMServingSim, profiler/); the numbers here were fitted to steps that those price."
        ),
        date=DATE,
        notes=(*notes, "Errors of `steps` are those of the few terms against the full tables."),
    )


def _a10g_steps(folder: Path) -> list[tuple[Batch, float]]:
    """Reads mean step durations by composition; the scheduler's and the output's part is added where left out."""
    steps = []
    for row in _rows(folder / "decode_steps.csv"):
        contexts = [int(row["mean_context_per_decoder"])] * int(row["n_decoders"])
        steps.append((Batch.of(contexts), 1e6 * float(row["mean_occupancy_ms"])))
    for row in _rows(folder / "decode_context_effect.csv"):
        contexts = [int(row["context_tokens"])] * int(row["n_decoders"])
        steps.append((Batch.of(contexts), 1e6 * float(row["mean_step_ms"])))
    steps += [
        (Batch.of([], [(int(row["chunk_tokens"]), 0)]), 1e6 * (float(row["mean_exec_ms"]) + 0.22))
        for row in _rows(folder / "prefill_only_steps.csv")
        if row["chunk_position"] == "first"
    ]
    for row in _rows(folder / "mixed_steps.csv"):
        if row["sum_context_K"]:
            decodes = int(row["n_decoders"])
            contexts = [int(row["sum_context_K"]) // decodes] * decodes
            batch = Batch.of(contexts, [(int(row["prefill_tokens_q"]), 0)])
            steps.append((batch, 1e6 * (float(row["mean_exec_ms"]) + 0.33)))
    return steps


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes profiles and prints their reports."""
    parser = argparse.ArgumentParser(prog="python -m calibrate.published", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(PUBLISHED), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=PROFILES_DIR)
    given = parser.parse_args(arguments)
    for name in given.names:
        outcome = PUBLISHED[name](given.folder, given.jobs, lambda text: print(text, file=sys.stderr))  # noqa: T201
        save_profile(outcome.profile, given.out / f"{name}.yaml")
        print("\n".join(outcome.report))  # noqa: T201


if __name__ == "__main__":
    main()
