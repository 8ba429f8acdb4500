"""`kvoffload demo`: the command line of the demo."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out_dir: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the picture, the figures and the log go.")
    ] = Path("demo-out"),
    cache_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the prepared model is kept for the next time.")
    ] = None,
    cpu_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Host memory that kvoffload may use.")
    ] = "1GiB",
    start_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the engine may take to start.")
    ] = 600.0,
    rounds: Annotated[
        int, typer.Option(min=2, help="How often every prompt is sent; the first time is the cold one.")
    ] = 4,
) -> None:
    """A real engine gets its KV back: after eviction from host memory, after a restart from disk. Tables and a picture.

    Exit code 1 if an answer differs, or if a prompt got nothing from kvoffload.
    """
    from kvoffload.cli.demo.progress import Progress, make_console  # noqa: PLC0415
    from kvoffload.cli.demo.run import DemoSetting, run_demo  # noqa: PLC0415

    setting = DemoSetting(out_dir, cache_dir or _default_cache_dir(), cpu_bytes, start_timeout, rounds)
    progress = Progress(make_console())
    with _signals_end_the_demo():
        passed = run_demo(setting, progress)
    raise typer.Exit(0 if passed else 1)


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvoffload" / "demo"


@contextmanager
def _signals_end_the_demo() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that the engine is stopped on the way."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
