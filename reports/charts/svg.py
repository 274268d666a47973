"""The few SVG elements that the charts are made of."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import escape


def number(value: float) -> str:
    """Writes a coordinate: a tenth of a unit is finer than any screen shows."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def element(name: str, content: str = "", **attributes: str | float) -> str:
    """Returns an element; underscores in names of attributes become hyphens, a trailing one is dropped."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else number(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(content: str, x: float, y: float, class_: str = "", anchor: str = "start", **more: str | float) -> str:
    """Returns a line of text."""
    attributes: dict[str, str | float] = {"x": x, "y": y}
    if class_:
        attributes["class_"] = class_
    if anchor != "start":
        attributes["text_anchor"] = anchor
    return element("text", str(escape(content)), **(attributes | more))


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Returns the `d` of a path through the points, those that fall on the one before left out."""
    parts: list[str] = []
    last = ""
    for x, y in points:
        place = f"{number(x)} {number(y)}"
        if place != last:
            parts.append(f"{'L' if parts else 'M'}{place}")
            last = place
    return "".join(parts)


def marker(shape: int, x: float, y: float, class_: str) -> str:
    """Returns a point marker: circle, square, diamond or triangle."""
    match shape % 4:
        case 0:
            return element("circle", cx=x, cy=y, r=3.2, class_=class_)
        case 1:
            return element("rect", x=x - 2.9, y=y - 2.9, width=5.8, height=5.8, class_=class_)
        case 2:
            d = f"M{number(x)} {number(y - 4)}l4 4l-4 4l-4-4z"
        case _:
            d = f"M{number(x)} {number(y - 4)}l3.8 6.8h-7.6z"
    return element("path", d=d, class_=class_)


def text_width(content: str, size: float = 12.0) -> float:
    """Estimates how wide a text is: the digits of a wide sans serif take 0.62 em."""
    return 0.62 * size * len(content)
