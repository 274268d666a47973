"""Warnings of many runs, each said once."""

from __future__ import annotations

import re
from collections.abc import Iterable

_UP_TO = re.compile(r"steps of up to (\d+) ")


def said_once(warnings: Iterable[str]) -> list[str]:
    """Returns each warning once, in the order of their first appearance.

    Those that only differ in how far steps left the range of a profile's data are one: with the largest number.

    Example:
        >>> said_once(["steps of up to 9 tokens", "odd", "steps of up to 12 tokens", "odd"])
        ['steps of up to 12 tokens', 'odd']
    """
    found: dict[str, str] = {}
    for text in warnings:
        key = _UP_TO.sub("steps of up to N ", text, count=1)
        if key not in found or _number(text) > _number(found[key]):
            found[key] = text
    return list(found.values())


def _number(text: str) -> int:
    match = _UP_TO.search(text)
    return int(match[1]) if match else 0
