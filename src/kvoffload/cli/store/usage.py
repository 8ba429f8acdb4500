"""`kvoffload du`: where the bytes of a store are, and whether the usage record agrees."""

from __future__ import annotations

from typing import Annotated

import typer

from kvoffload.errors import ConfigError


def du(
    root: Annotated[
        str,
        typer.Argument(metavar="ROOT", help="The store: root_dir of the fs tier, or s3://… as for --obj."),
    ],
    *,
    max_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The cap to compare with (it is an option of the engines)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Say what occupies a store: chunks, temporary files, directories, foreign files. Changes nothing."""
    from kvoffload.cli.store.object_store import report_objects  # noqa: PLC0415
    from kvoffload.cli.store.roots import is_address  # noqa: PLC0415
    from kvoffload.cli.store.usage_report import report_usage  # noqa: PLC0415
    from kvoffload.config.units import parse_bytes  # noqa: PLC0415
    from kvoffload.tiers.fs.store_root import open_root  # noqa: PLC0415

    if is_address(root):
        if max_bytes is not None:
            raise ConfigError(
                "du: --max-bytes is for a directory; an object store keeps no record to compare with"
            )
        report_objects(root, as_json=as_json)
        return
    cap = None if max_bytes is None else parse_bytes(max_bytes, "--max-bytes")
    report_usage(open_root(root), cap, as_json=as_json)
