"""What the store tools have in common: JSON or a table on stdout, everything else (progress, warnings) on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

_NANOSECONDS = 1_000_000_000
_PLAIN_WIDTH = 200
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def print_json(value: Mapping[str, object]) -> None:
    """The one JSON object of a command that was asked for `--json`."""
    # ASCII: names of foreign files may hold bytes that are no text.
    print(json.dumps(value, indent=2, ensure_ascii=True))


def warn(text: str) -> None:
    """A line on stderr."""
    print(f"kvoffload: {shown(text)}", file=sys.stderr)


def say(text: str) -> None:
    """A line on stdout."""
    print(shown(text))


def shown(text: str) -> str:
    """A text whose control characters and bytes that are no text cannot harm a terminal."""
    safe = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in safe)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table on stdout; columns named in `right` are aligned to the right."""
    console = Console(highlight=False)
    if not console.is_terminal:
        # For a file or a pipe nothing is cut off.
        widest = sum(max(map(len, column)) + 2 for column in zip(columns, *rows, strict=True))
        console = Console(highlight=False, width=max(_PLAIN_WIDTH, widest))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console.print(table)


@contextmanager
def progress(title: str, total_bytes: int | None, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs, if that is a terminal; yields what moves it on by so many bytes."""
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda _size: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as live:
        task = live.add_task(title, total=total_bytes)
        yield lambda size: live.advance(task, size)


@contextmanager
def looking(*, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """A spinner and a running count on stderr while a store is walked, if that is a terminal.

    Yields:
        What is told how many chunks were found in one more directory. It does nothing after the block.
    """
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda _chunks: None
        return
    columns = (SpinnerColumn(), TextColumn("looking: {task.completed:,} chunks"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as live:
        task = live.add_task("looking", total=None)
        yield lambda chunks: live.advance(task, chunks)


def size_text(size: int) -> str:
    """Bytes for a table: `1.50 GiB`."""
    value = float(size)
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{size} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} {_UNITS[-1]}"


def time_text(time_ns: int | None) -> str:
    """A time on the disk, in the machine's time zone; `-` for none."""
    if time_ns is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // _NANOSECONDS))
    except (ValueError, OverflowError, OSError):
        # A file may carry any time.
        return f"{time_ns} ns"


def seconds_of(time_ns: int | None) -> float | None:
    """A time on the disk for JSON: seconds since the epoch."""
    return None if time_ns is None else time_ns / _NANOSECONDS
