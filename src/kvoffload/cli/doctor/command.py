"""`kvoffload doctor`: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvoffload.errors import ConfigError


def doctor(
    *,
    fs: Annotated[
        str | None,
        typer.Option(
            metavar="PATH[:CAP]", help="Also check this directory, as for serve: root_dir of an fs tier."
        ),
    ] = None,
    obj: Annotated[
        str | None,
        typer.Option(metavar="URL[?OPTION=VALUE&…]", help="Also check this object store, as for serve."),
    ] = None,
    cpu_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Host memory that the engine shall get for KV.")
    ] = None,
    fs_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Cap that the fs tier shall get (its max_bytes).")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Also say which layers of this model (config.json or its directory) canonical_layout can share.",
        ),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel size of the engine, for --model.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Check this machine before an engine starts: what was found, whether it will do, and how to mend it.

    Exit code 0 if the engine can start (with or without warnings), 1 if something has to be mended first.
    """
    from kvoffload.cli.doctor.examination import Wishes, examine  # noqa: PLC0415
    from kvoffload.cli.obj_option import config_of  # noqa: PLC0415
    from kvoffload.config.units import parse_bytes  # noqa: PLC0415

    path, cap = _directory(fs, fs_bytes)
    wishes = Wishes(
        fs_path=path,
        cpu_bytes=None if cpu_bytes is None else parse_bytes(cpu_bytes, "--cpu-bytes"),
        fs_bytes=cap,
        model=model,
        tp=tp,
        obj=obj,
    )
    if obj is not None:
        config_of(obj)
    raise typer.Exit(0 if examine(wishes, as_json=as_json) else 1)


def _directory(fs: str | None, fs_bytes: str | None) -> tuple[str | None, int | None]:
    """Path and cap of the directory to check, from an argument as `serve` takes it, so that it can be copied."""
    from kvoffload.cli.fs_option import parse_fs  # noqa: PLC0415
    from kvoffload.config.units import parse_bytes  # noqa: PLC0415

    if fs == "":
        raise ConfigError("--fs: the path is empty; give a directory")
    tier = {} if fs is None else parse_fs([fs])[0]
    cap = tier.get("max_bytes")
    if cap is not None and fs_bytes is not None:
        raise ConfigError(f"--fs {fs!r} has a cap, and --fs-bytes is another one; give one of them")
    if fs_bytes is not None:
        cap = parse_bytes(fs_bytes, "--fs-bytes")
    return None if fs is None else str(tier["root_dir"]), cap if isinstance(cap, int) else None
