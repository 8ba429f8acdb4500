"""`kvoffload ls`: the namespaces of a store, or their chunks."""

from __future__ import annotations

from typing import Annotated

import typer


def ls(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The store: root_dir of the fs tier.")],
    namespace: Annotated[
        str | None,
        typer.Argument(metavar="[NAMESPACE]", help="Only this one: its name or digest, or a beginning."),
    ] = None,
    *,
    chunks: Annotated[bool, typer.Option("--chunks", help="List the chunks instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List what a store holds: one line a namespace, or with --chunks one line a chunk. Changes nothing."""
    from kvoffload.cli.store.listing_report import list_chunks, list_namespaces  # noqa: PLC0415
    from kvoffload.cli.store.roots import directory_of  # noqa: PLC0415
    from kvoffload.tiers.fs.store_root import open_root  # noqa: PLC0415

    store = open_root(directory_of(root, "ls"))
    (list_chunks if chunks else list_namespaces)(store, store.select(namespace), as_json=as_json)
