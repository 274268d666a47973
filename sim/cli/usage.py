"""What is wrong with a command line, in one line: what was given, what is allowed, and where that is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

_PHRASES = (
    (r"^Value error, ", ""),
    (r"Input should be a valid integer, .*", "expected a whole number"),
    (r"Input should be a valid number, .*", "expected a number"),
    (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
    (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
)


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turns an error of the command line, which is four lines of its parser, into one on stderr and exit 2."""
    try:
        yield
    except Exception as error:
        # Told by what they can do: where the parser's own classes lie differs between releases of it.
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        typer.echo(usage_line(error), err=True)
        raise typer.Exit(2) from None


def usage_line(error: Any) -> str:
    """Returns the line for an error of the parser."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    cure = "" if context is None else f"; `{context.command_path} -h` explains"
    if parameter is None or not error.message:  # nothing to do with a value
        return f"{error.format_message().rstrip('.')}{cure}"
    message, name = str(error.message).rstrip("."), parameter.opts[0]
    for pattern, phrase in _PHRASES:
        message = re.sub(pattern, phrase, message)
    given = _given(error)
    got = "" if given is None or repr(given) in message else f"; got {given!r}"
    return f"{name}: {message}{got}{cure}"


def _given(error: Exception) -> object:
    """Returns the value that could not be read, where the parser says it."""
    problems = getattr(error.__cause__, "errors", None)
    return problems()[0].get("input") if callable(problems) else None
