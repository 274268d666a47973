"""`headcount init`: a commented scenario to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Write scenario.schema.json beside it, for completion in editors.")
    ] = False,
) -> None:
    """Write a commented scenario to start from."""
    from sim.scenario.template import template_text

    name = path.stem if path.stem != "scenario" else "my-team"
    _write(path, template_text(name, with_schema=schema), force=force)
    if schema:
        from sim.scenario.schema import schema_text

        _write(path.parent / "scenario.schema.json", schema_text(), force=True)
    typer.echo(f"wrote {path}; next: headcount check {path}, then headcount run {path}")


def _write(path: Path, text: str, *, force: bool) -> None:
    """Writes a file.

    Raises:
        UserError: the file is there already, or cannot be written.
    """
    from sim.errors import UserError

    try:
        with path.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UserError(f"{path}: already there; --force replaces it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
