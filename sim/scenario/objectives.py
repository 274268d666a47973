"""Service objectives: one bound each, written as people say it: `ttft.p95 <= 2s`, `goodput(ttft <= 2s) >= 95%`."""

from __future__ import annotations

import difflib
import re
from typing import Any, Literal, NamedTuple

from pydantic import Field, GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sim.scenario.part import Part
from sim.scenario.units import format_duration, parse_duration, parse_share

LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")
_GOODPUT_BOUNDS = ("ttft", "tpot", "e2el")  # the keys of `vllm bench serve --goodput`
_UNITS = {"preemptions": "", "output_throughput": "tok/s", "request_throughput": "req/s"}
_MORE_IS_BETTER = ("goodput", "output_throughput", "request_throughput")
METRICS = (*LATENCIES, "errors", "goodput", "duration", *_UNITS)

Metric = Literal[
    "ttft", "tpot", "itl", "e2el", "queue", "errors", "goodput", "duration",
    "preemptions", "output_throughput", "request_throughput",
]  # fmt: skip

_OBJECTIVE = re.compile(
    r"(?P<name>\w+)(?:\.(?P<stat>[\w.]+))?"
    r"\s*(?:\((?P<bounds>[^)]*)\))?\s*(?:\[(?P<only>[^\]]*)\])?\s*(?P<op><=|>=|<|>|==?)\s*(?P<bound>.+)"
)
_EXAMPLE = "for example 'ttft.p95 <= 2s' or 'errors <= 0.1%'"


class Bound(NamedTuple):
    """One latency bound of a goodput objective, in seconds."""

    metric: str
    seconds: float


class Objective(Part):
    """One bound that must hold in the steady-state window.

    Latencies (ttft, tpot, itl, e2el, queue) take a statistic and are in seconds; `duration`, the length of the whole
    run, is in seconds too; `errors` and `goodput` are shares between 0 and 1; throughputs are per second;
    `preemptions` is a count.
    """

    metric: Metric = Field(description="What is measured.")
    percentile: float | None = Field(default=None, description="The percentile of a latency; None: see `statistic`.")
    statistic: Literal["mean", "max"] | None = Field(default=None, description="The other statistics of a latency.")
    op: Literal["<=", ">="] = Field(description="The side on which the measure must lie.")
    value: float = Field(description="The bound, in seconds, as a share, per second or as a count.")
    class_name: str | None = Field(default=None, description="Only the requests of this class; None: all.")
    bounds: tuple[Bound, ...] = Field(default=(), description="What a request must meet to count for goodput.")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if isinstance(data, dict) and "metric" in data:
            return data
        return parse_objective(data)

    @model_serializer(mode="plain")
    def _write(self) -> str:
        return self.text

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        metrics = "|".join(METRICS)
        return {
            "type": "string",
            "description": "A bound that must hold: 'ttft.p95 <= 2s', 'itl.p99[chat] <= 80ms', 'errors <= 0.1%', "
            "'goodput(ttft <= 2s, tpot <= 100ms) >= 95%', 'duration <= 8h'.",
            "pattern": rf"^\s*({metrics})(\.(mean|max|p\d+(\.\d+)?))?\s*(\([^)]*\))?\s*(\[[^\]]*\])?\s*(<=|>=)\s*\S.*$",
        }

    @property
    def name(self) -> str:
        """The measure as the scenario names it: `ttft.p95[chat]`."""
        stat = f".{self.stat_name}" if self.stat_name else ""
        bounds = ", ".join(f"{bound.metric} <= {format_duration(bound.seconds)}" for bound in self.bounds)
        only = f"[{self.class_name}]" if self.class_name else ""
        return f"{self.metric}{stat}{f'({bounds})' if bounds else ''}{only}"

    @property
    def stat_name(self) -> str | None:
        """`p95`, `mean`, `max`, or None for measures without a statistic."""
        return f"p{self.percentile:g}" if self.percentile is not None else self.statistic

    @property
    def text(self) -> str:
        """The objective as a scenario writes it."""
        return f"{self.name} {self.op} {self.format(self.value)}"

    def show(self, value: float, digits: int = 3) -> str:
        """Returns a measured value as results show it, in the unit that suits it: `620 ms`, `1.11 %`.

        Args:
            value: in seconds, as a share, or in the unit of the measure.
            digits: of what is neither a time nor a share; those have three.
        """
        if self.metric in LATENCIES or self.metric == "duration":
            seconds = float(f"{value:.3g}")  # first, so that 999.7 ms are 1 s and not 1e+03 ms
            if seconds < 1:
                return f"{1000 * seconds:.3g} ms"
            return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds / 3600:.3g} h"
        if self.metric in ("errors", "goodput"):
            return f"{100 * value:.3g} %"
        return self.format(float(f"{value:.{digits}g}"))

    def format(self, value: float) -> str:
        """Returns a bounding value as a scenario writes it, with the unit of this objective: `0.1%`."""
        if self.metric in LATENCIES or self.metric == "duration":
            return format_duration(value)
        if self.metric in ("errors", "goodput"):
            return f"{float(f'{value * 100:.10g}'):g}%"
        unit = _UNITS[self.metric]
        return f"{value:g} {unit}".rstrip()

    def met_by(self, value: float) -> bool:
        """Returns whether a measured value meets the bound."""
        return value <= self.value if self.op == "<=" else value >= self.value


def parse_objective(text: Any) -> dict[str, Any]:
    """Returns the fields of an `Objective` from its text.

    Raises:
        ValueError: what is wrong with the text, what was given and what is allowed.
    """
    if not isinstance(text, str):
        raise ValueError(f"an objective is text; got {text!r}; {_EXAMPLE}")
    match = _OBJECTIVE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an objective; got {text!r}; {_EXAMPLE}")
    metric, stat = _metric(match["name"], match["stat"], text)
    _check_op(metric, match["op"], match["bound"])
    fields: dict[str, Any] = {"metric": metric, "op": match["op"], "value": _value(metric, match["bound"].strip())}
    fields.update(_statistic(metric, stat))
    if match["only"] is not None:
        fields["class_name"] = match["only"].strip()
    if metric == "goodput":
        fields["bounds"] = _goodput_bounds(match["bounds"])
    elif match["bounds"] is not None:
        raise ValueError(f"only goodput takes bounds in parentheses; got {text!r}")
    return fields


def _metric(name: str, stat: str | None, text: str) -> tuple[str, str | None]:
    """Splits `name.stat` and checks the name."""
    if name in METRICS:
        return name, stat
    if re.fullmatch(r"p\d+|mean|max", name):
        raise ValueError(f"{name} of what? got {text!r}; write ttft.{name}, itl.{name}, … ({', '.join(LATENCIES)})")
    close = difflib.get_close_matches(name, METRICS, n=1)
    cure = f"did you mean '{close[0]}'?" if close else f"metrics: {', '.join(METRICS)}"
    raise ValueError(f"unknown metric {name!r}; {cure}")


def _check_op(metric: str, op: str, bound: str) -> None:
    """A measure is bounded on its bad side, so that an objective holds at small loads and breaks at large ones."""
    if op not in ("<=", ">="):
        raise ValueError(f"an objective compares with <= or >=; got {op!r}")
    good = ">=" if metric in _MORE_IS_BETTER else "<="
    if op != good:
        side = "below" if good == ">=" else "above"
        raise ValueError(f"{metric} is bounded from {side}; got {op!r}; write {good} {bound}")


def _statistic(metric: str, stat: str | None) -> dict[str, Any]:
    known = "mean, max, p50, p90, p95, p99, p99.9, …"
    if metric not in LATENCIES:
        if stat is not None:
            raise ValueError(f"{metric} takes no statistic; got '{metric}.{stat}'")
        return {}
    if stat is None:
        raise ValueError(f"{metric} needs a statistic; got '{metric}'; write {metric}.p95 ({known})")
    if stat in ("mean", "max"):
        return {"statistic": stat}
    if not re.fullmatch(r"p\d+(\.\d+)?", stat):
        raise ValueError(f"unknown statistic {stat!r} of {metric}; statistics: {known}")
    percentile = float(stat[1:])
    if not 0 < percentile < 100:
        raise ValueError(f"a percentile lies between 0 and 100; got {stat!r}; the greatest value is {metric}.max")
    return {"percentile": percentile}


def _value(metric: str, text: str) -> float:
    if metric in LATENCIES or metric == "duration":
        return parse_duration(text)
    if metric in ("errors", "goodput"):
        return parse_share(text)
    unit = _UNITS[metric]
    number = re.fullmatch(rf"(\d+\.?\d*|\.\d+)\s*(?:{re.escape(unit)})?", text)
    if number is None:
        shown = f"a number, in {unit}" if unit else "a number"
        raise ValueError(f"the bound of {metric} is {shown}; got {text!r}")
    return float(number[1])


def _goodput_bounds(text: str | None) -> tuple[Bound, ...]:
    """Reads `ttft <= 2s, tpot <= 100ms`."""
    cure = f"write goodput(ttft <= 2s, tpot <= 100ms) >= 95% (bounds on {', '.join(_GOODPUT_BOUNDS)})"
    if text is None or not text.strip():
        raise ValueError(f"goodput needs the bounds that a good request meets; {cure}")
    bounds = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*(?:<=|:)?\s*(\S.*?)\s*", item)
        if match is None or match[1] not in _GOODPUT_BOUNDS:
            raise ValueError(f"not a bound of goodput; got {item.strip()!r}; {cure}")
        bounds.append(Bound(match[1], parse_duration(match[2])))
    return tuple(bounds)
