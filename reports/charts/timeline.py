"""A Gantt chart: one row a request, coloured by phase."""

from __future__ import annotations

from reports.charts.plot import WIDTH
from reports.charts.scale import fit_scale
from reports.charts.svg import element, number, text, text_width
from reports.content import Timeline
from reports.words import Words

_ROW, _TOP, _BOTTOM, _RIGHT = 18, 6, 42, 10


def render_timeline(timeline: Timeline, words: Words) -> str:
    """Returns the timeline as an SVG element."""
    left = 12 + max((text_width(label, 11.5) for label in timeline.labels), default=0)
    base = _TOP + _ROW * len(timeline.labels)
    ends = [span.end for row in timeline.spans for span in row]
    scale = fit_scale(ends, "linear", left, WIDTH - _RIGHT)
    parts = [element("title", timeline.title.replace("&", "&amp;").replace("<", "&lt;"))]
    for tick in scale.ticks(6):
        place = scale(tick)
        parts.append(element("path", d=f"M{number(place)} {_TOP}V{base}", class_="grid"))
        parts.append(text(words.number(tick, 4), place, base + 16, "tick", "middle"))
    for index, (label, spans) in enumerate(zip(timeline.labels, timeline.spans, strict=True)):
        top = _TOP + _ROW * index
        parts.append(text(label, left - 6, top + 13, "tick", "end"))
        for span in spans:
            start, end = scale(span.start), scale(span.end)
            parts.append(
                element(
                    "rect",
                    x=start,
                    y=top + 3,
                    width=max(end - start, 0.8),
                    height=_ROW - 6,
                    class_=f"span f{span.phase}",
                )
            )
    parts.append(element("path", d=f"M{number(left)} {base}H{WIDTH - _RIGHT}", class_="axis"))
    parts.append(text(timeline.axis.label, (left + WIDTH - _RIGHT) / 2, base + _BOTTOM - 7, "label", "middle"))
    return element(
        "svg",
        "".join(parts),
        viewBox=f"0 0 {WIDTH} {base + _BOTTOM}",
        class_="chart",
        role="img",
        aria_label=timeline.alt,
    )
