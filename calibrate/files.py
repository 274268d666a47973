"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sim.errors import UserError


def write_whole(path: Path, text: str) -> None:
    """Writes a text file through a temporary one beside it, making its folder where missing.

    Raises:
        UserError: it cannot be written.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary and os.path.exists(temporary):  # noqa: PTH110 - the name is a text here
            Path(temporary).unlink()
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
