"""Traces in CSV: the Azure LLM inference traces, and any table of arrival, prompt and answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sim.workload.csv_columns import SECONDS, Column, Labels, read_columns, seconds, utc_nanoseconds, whole_numbers
from sim.workload.trace import Trace

_PROMPT_TOKENS = Column(
    ("input_tokens", "prompt_tokens", "input_length", "num_prefill_tokens", "ContextTokens"),
    whole_numbers(1),
    "a whole number of tokens, at least 1",
)
_OUTPUT_TOKENS = Column(
    ("output_tokens", "output_length", "num_decode_tokens", "GeneratedTokens"),
    whole_numbers(1),
    "a whole number of tokens, at least 1",
)


def read_csv(path: Path) -> Trace:
    """Reads a table with a header: arrival_s, input_tokens, output_tokens, and perhaps class, user and priority.

    The times count from the start of the recording. Other columns are ignored.

    Raises:
        UserError: as `read_columns`.
    """
    classes, users = Labels(), Labels()
    columns = read_columns(
        path,
        {
            "arrival_s": Column(("arrival_s", "time_s", "arrived_at"), seconds, SECONDS),
            "prompt_tokens": _PROMPT_TOKENS,
            "output_tokens": _OUTPUT_TOKENS,
            "class": Column(("class", "class_name"), classes.parse, "a name", optional=True),
            "user": Column(("user", "user_id"), users.parse, "a name or number", optional=True),
            "priority": Column(("priority",), whole_numbers(-(2**31)), "a whole number", optional=True),
        },
    )
    return Trace(
        sent_ns=np.rint(columns["arrival_s"] * 1e9).astype(np.int64),
        prompt_tokens=columns["prompt_tokens"],
        output_tokens=columns["output_tokens"],
        class_ids=columns.get("class"),
        class_names=classes.names,
        user_ids=columns.get("user"),
        priorities=columns.get("priority"),
    ).in_order()


def read_azure(path: Path) -> Trace:
    """Reads an Azure LLM inference trace (github.com/Azure/AzurePublicDataset).

    Its columns are TIMESTAMP, ContextTokens and GeneratedTokens. The times are UTC; here they count from the first
    request. It knows no users and no shared prefixes.

    Raises:
        UserError: as `read_columns`.
    """
    timestamp = Column(("TIMESTAMP",), utc_nanoseconds, "a UTC time like 2023-11-16 18:17:03.9799600")
    columns = read_columns(
        path, {"sent_ns": timestamp, "prompt_tokens": _PROMPT_TOKENS, "output_tokens": _OUTPUT_TOKENS}
    )
    return Trace(
        sent_ns=columns["sent_ns"] - columns["sent_ns"].min(),
        prompt_tokens=columns["prompt_tokens"],
        output_tokens=columns["output_tokens"],
    ).in_order()
