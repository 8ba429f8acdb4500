"""`kvoffload gc`: removes what dead writers left, and chunks beyond a bound."""

from __future__ import annotations

from typing import Annotated

import typer


def gc(
    root: Annotated[
        str,
        typer.Argument(metavar="ROOT", help="The store: root_dir of the fs tier, or s3://… as for --obj."),
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed; change nothing.")
    ] = False,
    max_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Remove the least recently used chunks until this holds."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Remove chunks that were not used for so long: 30d, 12h, 90m, 45s."
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="N", help="Only in this one: its name or digest, or a beginning.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Tidy a store, also while engines use it: files of dead writers, empty directories, chunks beyond the bounds.

    Exit code 1 if something could not be read or removed, or the bound cannot be met.
    """
    from kvoffload.cli.store.collection_run import run_gc  # noqa: PLC0415
    from kvoffload.cli.store.durations import parse_duration  # noqa: PLC0415
    from kvoffload.cli.store.object_store import collect_objects  # noqa: PLC0415
    from kvoffload.cli.store.roots import is_address  # noqa: PLC0415
    from kvoffload.config.units import parse_bytes  # noqa: PLC0415
    from kvoffload.tiers.fs.store_root import open_root  # noqa: PLC0415

    bound = None if max_bytes is None else parse_bytes(max_bytes, "--max-bytes")
    age_s = None if older_than is None else parse_duration(older_than, "--older-than")
    if is_address(root):
        passed = collect_objects(root, namespace, (bound, age_s), dry_run=dry_run, as_json=as_json)
        raise typer.Exit(0 if passed else 1)
    passed = run_gc(open_root(root), namespace, (bound, age_s), dry_run=dry_run, as_json=as_json)
    raise typer.Exit(0 if passed else 1)
