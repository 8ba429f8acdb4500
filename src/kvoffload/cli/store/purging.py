"""`kvoffload purge`: removes all chunks of a namespace, or of a whole store."""

from __future__ import annotations

from typing import Annotated

import typer


def purge(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The store: root_dir of the fs tier.")],
    *,
    namespace: Annotated[
        str | None, typer.Option(metavar="N", help="Only this one: its name or digest, or a beginning.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed; change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Remove all chunks. What is not ours stays, and so does the directory of an engine that is running.

    Exit code 1 if something could not be removed, or the answer was no.
    """
    from kvoffload.cli.store.purging_run import run_purge  # noqa: PLC0415
    from kvoffload.cli.store.roots import directory_of  # noqa: PLC0415
    from kvoffload.tiers.fs.store_root import open_root  # noqa: PLC0415

    passed = run_purge(
        open_root(directory_of(root, "purge")), namespace, yes=yes, dry_run=dry_run, as_json=as_json
    )
    raise typer.Exit(0 if passed else 1)
