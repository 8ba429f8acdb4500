"""`kvoffload verify`: reads every chunk of a store and says what is damaged; with --fix, mends what can be mended."""

from __future__ import annotations

from typing import Annotated

import typer


def verify(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The store: root_dir of the fs tier.")],
    *,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Remove damaged chunks and files of dead writers, set the usage record right."
        ),
    ] = False,
    namespace: Annotated[
        str | None, typer.Option(metavar="N", help="Only this one: its name or digest, or a beginning.")
    ] = None,
    limit: Annotated[
        float | None, typer.Option(metavar="MiB/s", min=0.001, help="Read no faster than this.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=64, help="How many files are read at once.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Check every chunk of a store: its header against its namespace and its name, its payload against its checksum.

    Exit code 1 if there is damage (with --fix: damage that is left).
    """
    from kvoffload.cli.store.roots import directory_of  # noqa: PLC0415
    from kvoffload.cli.store.verification_run import VerifyOptions, run_verify  # noqa: PLC0415
    from kvoffload.tiers.fs.store_root import open_root  # noqa: PLC0415

    options = VerifyOptions(fix, limit, threads, as_json)
    raise typer.Exit(0 if run_verify(open_root(directory_of(root, "verify")), namespace, options) else 1)
