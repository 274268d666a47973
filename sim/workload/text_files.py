"""Text files with line numbers, plain or gzip, and errors that say where a file is broken."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim.errors import UserError

_GZIP_MAGIC = b"\x1f\x8b"


class Lines(Iterator[str]):
    """The lines of a text, each with its end; `number` is that of the line read last."""

    def __init__(self, text: io.TextIOBase) -> None:
        self.text = text
        self.number = 0

    def __next__(self) -> str:
        line = next(self.text)
        self.number += 1
        return line

    def error(self, path: Path, what: str) -> UserError:
        """Returns the error that says what is wrong with the line after the one read last."""
        return UserError(f"{path}:{self.number + 1}:1: {what}")


@contextmanager
def open_lines(path: Path) -> Iterator[Lines]:
    """Opens a UTF-8 text, decompressed where it is gzip (whatever its name).

    Raises:
        UserError: there is no such file; or, while it is read, it is cut short, damaged, or no UTF-8.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    with raw:
        is_gzip = raw.peek(2)[:2] == _GZIP_MAGIC
        binary = gzip.GzipFile(fileobj=raw) if is_gzip else raw
        lines = Lines(io.TextIOWrapper(binary, encoding="utf-8-sig", newline=""))
        try:
            yield lines
        except EOFError:
            raise lines.error(path, "the gzip data end too early; is the file complete?") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise lines.error(path, f"the gzip data are damaged: {error}") from None
        except UnicodeDecodeError as error:
            raise lines.error(path, f"not UTF-8 text: {error.reason}") from None
