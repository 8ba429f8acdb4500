"""`kvoffload doctor`: the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from kvoffload.errors import ConfigError


def doctor(
    *,
    fs: Annotated[
        str | None, typer.Option(metavar="PATH", help="Also check this directory: root_dir of an fs tier.")
    ] = None,
    cpu_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Host memory that the engine shall get for KV.")
    ] = None,
    fs_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Cap that the fs tier shall get (its max_bytes).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Check this machine before an engine starts: what was found, whether it will do, and how to mend it.

    Exit code 0 if the engine can start (with or without warnings), 1 if something has to be mended first.
    """
    from kvoffload.cli.doctor.examination import Wishes, examine  # noqa: PLC0415
    from kvoffload.config.units import parse_bytes  # noqa: PLC0415

    if fs == "":
        raise ConfigError("--fs: the path is empty; give a directory")
    wishes = Wishes(
        fs_path=fs,
        cpu_bytes=None if cpu_bytes is None else parse_bytes(cpu_bytes, "--cpu-bytes"),
        fs_bytes=None if fs_bytes is None else parse_bytes(fs_bytes, "--fs-bytes"),
    )
    raise typer.Exit(0 if examine(wishes, as_json=as_json) else 1)
