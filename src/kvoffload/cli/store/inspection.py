"""`kvoffload stat`: everything about a store, a namespace or one chunk file."""

from __future__ import annotations

from typing import Annotated

import typer


def stat(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A store, one of its namespaces, or a chunk file.")
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show a store, a namespace or a chunk in readable form. Changes nothing.

    Exit code 1 if it is a chunk that is damaged.
    """
    from kvoffload.cli.store.inspection_report import inspect  # noqa: PLC0415
    from kvoffload.cli.store.roots import directory_of  # noqa: PLC0415

    raise typer.Exit(0 if inspect(directory_of(path, "stat"), as_json=as_json) else 1)
