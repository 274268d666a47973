"""Whatever stands in a file, reading it ends with a scenario or with lines that each name a place in it."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sim.scenario.source import parse_source

from .texts import CLOSED, OPEN, USERS, lines_for

_LINE = re.compile(r"s\.yaml:\d+:\d+: \S.*")
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**9),
    st.floats(),
    st.sampled_from(["inf", "5s", "5", "-3min", "0.1%", "users", "all", "ttft.p95 <= 2s", "", " ", "no such thing"]),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["kind", "name", "lognormal", "uniform", "median", "low", "x"]), inner, max_size=3
        ),
    ),
    max_leaves=5,
)


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in _paths(item, (*path, key)))]


def _put(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _put(value[path[0]], path[1:], new)
    return copy


@settings(deadline=None)
@given(text=st.sampled_from([USERS, OPEN, CLOSED]), choice=st.integers(min_value=0), value=_VALUES)
def test_any_value_in_any_place_loads_or_is_explained(text: str, choice: int, value: Any) -> None:
    data = parse_source(text, "s.yaml").data
    paths = _paths(data)
    changed = _put(data, paths[choice % len(paths)], value)
    written = json.dumps(changed).replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf")
    for line in lines_for(written):
        assert _LINE.fullmatch(line), line


@settings(deadline=None)
@given(st.text(alphabet="ab:- []{},'\"\n\t#&*!|>%@0.9", max_size=40))
@example("a: !!python/object:os.system x")
def test_any_text_is_explained(text: str) -> None:
    lines = lines_for(text)
    assert lines, "no such text is a scenario"
    assert all(_LINE.fullmatch(line) for line in lines), lines
