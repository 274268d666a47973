"""Lines, steps, bars, dots and stacks on two axes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from reports.charts.scale import Scale, fit_range, fit_scale
from reports.charts.svg import element, marker, number, polyline, text, text_width
from reports.content import Chart, Series
from reports.words import Words

WIDTH, HEIGHT = 440, 270
_TOP, _BOTTOM, _RIGHT = 16, 42, 10
_FEW_POINTS = 40  # beyond it markers hide the line


def render_chart(chart: Chart, words: Words) -> str:
    """Returns the chart as an SVG element."""
    return _Plot.of(chart, words).svg()


@dataclass(frozen=True, slots=True)
class _Plot:
    chart: Chart
    words: Words
    x: Scale
    y: Scale
    left: float

    @classmethod
    def of(cls, chart: Chart, words: Words) -> _Plot:
        shown_y = _values(chart)
        marked = [mark.value for mark in chart.marks if mark.axis == "y"]
        y = fit_scale(shown_y + marked, chart.y.scale, HEIGHT - _BOTTOM, _TOP, chart.y.at_least)
        labels = [_tick(words, tick, chart.y.kind) for tick in y.ticks(5)]
        left = 22 + max((text_width(label, 11.5) for label in labels), default=0)
        xs = [x for series in chart.series for x in series.x]
        xs += [mark.value for mark in chart.marks if mark.axis == "x"]
        if all(series.style == "dots" for series in chart.series) and chart.x.scale == "linear" and xs:
            xs += [0.0, 1.08 * max(xs)]  # single points stand free
        return cls(chart, words, fit_range(xs, chart.x.scale, left, WIDTH - _RIGHT), y, left)

    def svg(self) -> str:
        chart = self.chart
        parts = [
            element("title", chart.title.replace("&", "&amp;").replace("<", "&lt;")),
            *self.bands(),
            *self.grid(),
            *(self.stack() if chart.stacked else [self.drawn(series) for series in chart.series]),
            *self.marks(),
            *self.titles(),
        ]
        return element(
            "svg", "".join(parts), viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart", role="img", aria_label=chart.alt
        )

    def grid(self) -> list[str]:
        chart, words = self.chart, self.words
        parts = []
        for tick in self.y.ticks(5):
            place = self.y(tick)
            parts.append(element("path", d=f"M{number(self.left)} {number(place)}H{WIDTH - _RIGHT}", class_="grid"))
            parts.append(text(_tick(words, tick, chart.y.kind), self.left - 6, place + 4, "tick", "end"))
        base = HEIGHT - _BOTTOM
        parts.append(element("path", d=f"M{number(self.left)} {base}H{WIDTH - _RIGHT}", class_="axis"))
        last = -1e9
        for tick in self.x.ticks(6):
            label, place = _tick(words, tick, chart.x.kind), self.x(tick)
            half = text_width(label, 11.5) / 2
            if place - half < last + 6:
                continue
            last = place + half
            shifted = min(place, WIDTH - 2 - half)
            parts.append(element("path", d=f"M{number(place)} {base}v4", class_="axis"))
            parts.append(text(label, shifted, base + 16, "tick", "middle"))
        return parts

    def titles(self) -> list[str]:
        chart = self.chart
        middle = (_TOP + HEIGHT - _BOTTOM) / 2
        turned = f"rotate(-90 11 {number(middle)})"
        return [
            text(chart.x.label, (self.left + WIDTH - _RIGHT) / 2, HEIGHT - 7, "label", "middle"),
            text(chart.y.label, 11, middle, "label", "middle", transform=turned),
        ]

    def drawn(self, series: Series) -> str:
        points = [(self.x(x), self.y(y)) for x, y in zip(series.x, series.y, strict=True) if y is not None]
        if series.style == "bars":
            return self.bars(series)
        if series.style == "step":
            corners = [points[0]] if points else []
            for (_, before), (x, after) in pairwise(points):
                corners += [(x, before), (x, after)]
            points = corners
        parts = []
        if series.style != "dots" and len(points) > 1:
            parts.append(element("path", d=polyline(points), class_=f"line s{series.colour} d{series.dash}"))
        if series.style == "dots" or (series.style == "line" and len(points) <= _FEW_POINTS):
            parts += [marker(series.dash, x, y, f"dot f{series.colour}") for x, y in points]
        return "".join(parts)

    def bars(self, series: Series) -> str:
        base = self.y(max(self.y.low, 0.0))
        width = max(1.0, 0.8 * (self.x.end - self.x.start) / max(len(series.x), 1))
        parts = [
            f"M{number(self.x(x) - width / 2)} {number(base)}V{number(self.y(y))}h{number(width)}V{number(base)}z"
            for x, y in zip(series.x, series.y, strict=True)
            if y
        ]
        return element("path", d="".join(parts), class_=f"fill f{series.colour}") if parts else ""

    def stack(self) -> list[str]:
        below = [0.0] * len(self.chart.series[0].x)
        parts = []
        for series in self.chart.series:
            above = [low + (y or 0.0) for low, y in zip(below, series.y, strict=True)]
            top, bottom = self.edge(series, above), self.edge(series, below)
            area = polyline([*top, *reversed(bottom)]) + "z"
            parts.append(element("path", d=area, class_=f"fill f{series.colour}"))
            below = above
        return parts

    def edge(self, series: Series, heights: list[float]) -> list[tuple[float, float]]:
        places = [(self.x(x), self.y(height)) for x, height in zip(series.x, heights, strict=True)]
        if series.style != "step":
            return places
        corners = places[:1]
        for (_, before), (x, after) in pairwise(places):
            corners += [(x, before), (x, after)]
        return corners

    def bands(self) -> list[str]:
        parts = []
        for band in self.chart.bands:
            start, end = self.x(band.start), self.x(band.end)
            parts.append(
                element(
                    "rect", x=start, y=_TOP, width=max(end - start, 1), height=HEIGHT - _BOTTOM - _TOP, class_="band"
                )
            )
        return parts

    def marks(self) -> list[str]:
        parts = []
        taken: list[tuple[float, float]] = []  # where the labels of the first row lie
        for mark in self.chart.marks:
            if mark.axis == "y":
                place = self.y(mark.value)
                parts.append(
                    element(
                        "path", d=f"M{number(self.left)} {number(place)}H{WIDTH - _RIGHT}", class_=f"mark {mark.tone}"
                    )
                )
                above = place - 4 if place > _TOP + 14 else place + 13
                parts.append(text(mark.title, self.left + 5, above, f"note {mark.tone}"))
                continue
            place, width = self.x(mark.value), text_width(mark.title, 11.5)
            parts.append(element("path", d=f"M{number(place)} {_TOP}V{HEIGHT - _BOTTOM}", class_=f"mark {mark.tone}"))
            left_side = place + 5 + width > WIDTH - _RIGHT
            anchor, shift = ("end", -5) if left_side else ("start", 5)
            start = place + shift - (width if left_side else 0)
            free = all(start > end or start + width < begin for begin, end in taken)
            taken.append((start, start + width))
            parts.append(text(mark.title, place + shift, 11 if free else 27, f"note {mark.tone}", anchor))
        return parts


def _values(chart: Chart) -> list[float]:
    """Returns the heights that the plot must show."""
    if chart.stacked:
        layers = [[y or 0.0 for y in series.y] for series in chart.series]
        return [sum(column) for column in zip(*layers, strict=True)]
    return [y for series in chart.series for y in series.y if y is not None]


def _tick(words: Words, value: float, kind: str) -> str:
    if kind == "share":
        return words.share(value)
    return words.number(value, 4 if value < 1000 else 3)
