"""What every section of a report is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reports.document import Document
from reports.source import Detail, Source
from reports.words import Words


@dataclass(frozen=True, slots=True)
class Prices:
    """What the hardware costs.

    Attributes:
        gpu_hour: price of one GPU for one hour.
        currency: its sign or code.
    """

    gpu_hour: float
    currency: str


@dataclass(frozen=True, slots=True)
class Context:
    """One run or search, in one language.

    Attributes:
        source: the numbers.
        words: the language.
        shown: the run that is looked at closely, at the load that is the answer; None when no records were kept.
        broken: a run at the load where something breaks.
        prices: what a GPU costs, when given.
    """

    source: Source
    words: Words
    shown: Detail | None
    broken: Detail | None
    prices: Prices | None = None

    @classmethod
    def of(cls, source: Source, words: Words, prices: Prices | None = None) -> Context:
        """Reads the runs that are to be shown in detail."""
        shown = source.detail(source.shown_load)
        broken = None
        if source.broken_load is not None or source.document["binding_objective"] is not None:
            same = source.broken_load == source.shown_load
            broken = shown if same else source.detail(source.broken_load)
        return cls(source, words, shown, broken, prices)

    @property
    def document(self) -> Document:
        """The result as plain data."""
        return self.source.document

    @property
    def kind(self) -> str:
        """The kind of server: vllm, ollama or static."""
        return str(self.document["server"]["kind"])

    def flag(self, name: str) -> Any:
        """Returns the value of a flag of the server; None where it is not set, or is none of this kind of server."""
        return self.document["server"]["flags"].get(name, {"value": None})["value"]

    @property
    def seats(self) -> int | None:
        """Returns how many requests the server runs at once at most, all replicas together; None where not known."""
        if self.kind == "vllm":
            own = self.document["server"].get("replicas", 1)
            replicas = own if self.shown is None else self.shown.run.num_replicas
            return int(self.flag("max_num_seqs")) * int(replicas)
        return self.shown.run.max_num_seqs * self.shown.run.num_replicas if self.shown is not None else None

    @property
    def shown_point(self) -> Document | None:
        """What was found at the load that is looked at closely."""
        return self.source.point(self.source.shown_load)

    @property
    def broken_point(self) -> Document | None:
        """What was found where something breaks."""
        return self.source.point(self.source.broken_load) if self.document["binding_objective"] is not None else None

    def load(self, value: float | None) -> str:
        """Writes a load with its unit."""
        return self.words.load(value, self.source.unit)

    @property
    def load_title(self) -> str:
        """Returns what loads are counted in."""
        return self.words(f"load.{self.source.unit}.title")

    def caption(self, detail: Detail) -> str:
        """Says which run a chart shows."""
        return self.words("caption.run", load=self.load(detail.load), seed=str(detail.seed))

    def means_caption(self) -> str:
        """Says what the points of a sweep are."""
        counts = [len(point["seeds"]) for point in self.document["points"]]
        few, many = min(counts, default=0), max(counts, default=0)
        if many == 1:
            return self.words("caption.one_seed")
        return self.words("caption.means" if few == many else "caption.means_range", few=few, many=many)
