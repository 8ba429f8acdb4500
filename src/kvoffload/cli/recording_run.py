"""What `kvoffload record` does around a session: options, signals, a line that moves, a summary."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from kvoffload.cli.store.durations import parse_duration
from kvoffload.config.units import format_bytes, parse_bytes
from kvoffload.errors import KvError

if TYPE_CHECKING:
    from kvoffload.connectors.events.session import RecordOptions, Session

_LIBRARIES = {"zmq": "pyzmq", "msgspec": "msgspec"}


class LibraryMissingError(KvError):
    """What reads an engine's events is not installed."""


def options_of(
    out: Path, source: tuple[str, bool, str | None], duration: str | None, max_bytes: str, wait: str
) -> RecordOptions:
    """The options, checked.

    Args:
        out: The file.
        source: Endpoint, whether we listen there, replay endpoint.
        duration: As text; None: until stopped.
        max_bytes: As text.
        wait: As text.

    Raises:
        ConfigError: one of them is not valid.
        LibraryMissingError: pyzmq or msgspec is not installed.
    """
    missing = [package for module, package in _LIBRARIES.items() if find_spec(module) is None]
    if missing:
        raise LibraryMissingError(
            f"record needs {' and '.join(missing)}, which come with vLLM; without it: pip install 'kvoffload[record]'"
        )
    from kvoffload.connectors.events.session import RecordOptions  # noqa: PLC0415
    from kvoffload.connectors.events.subscription import Source  # noqa: PLC0415

    return RecordOptions(
        Source(*source),
        out,
        None if duration is None else parse_duration(duration, "--duration"),
        parse_bytes(max_bytes, "--max-bytes"),
        parse_duration(wait, "--wait"),
    )


def run_recording(options: RecordOptions) -> None:
    """Record, and say what came of it. Raises KvError as `Session` does."""
    from kvoffload.connectors.events.session import Session  # noqa: PLC0415

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with _stopped_by_signals() as is_stopped, _moving_line(console) as show:
        session = Session(options, is_stopped, lambda text: console.print(f"kvoffload: {escape(text)}"), show)
        session.run()
    for line in _summary(session):
        print(line)


@contextmanager
def _stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """While the block runs, SIGINT and SIGTERM only set what this yields."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda found, _: received.append(found)) for number in numbers}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _moving_line(console: Console) -> Iterator[Callable[[Session], None]]:
    """A line on a terminal; nothing elsewhere."""
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("listening …") as status:
        yield lambda session: status.update(_progress(session))


def _progress(session: Session) -> str:
    counts = session.trace.counts
    size = format_bytes(counts.file_bytes).partition(" (")[0]
    held = session.trace.held_blocks
    lost = f", {session.lost} messages lost" if session.lost else ""
    return f"recording: {counts.blocks + held:,} blocks, {size} written{lost}"


def _summary(session: Session) -> Iterator[str]:
    trace = session.trace
    counts = trace.counts
    size = format_bytes(counts.file_bytes).partition(" (")[0]
    yield (
        f"{trace.path}: {counts.blocks} blocks of {trace.selection.block_tokens} tokens in {counts.runs} runs "
        f"({counts.events} events, {size}{', full' if trace.is_full else ''}): what missed the device's cache"
    )
    for reason, blocks in trace.selection.left_out.items():
        yield f"left out: {blocks} blocks, {reason}"
    if trace.selection.left_out:
        yield f"recorded: group {trace.selection.group}, the first one of full attention"
    if session.lost:
        yield f"lost: {session.lost} messages; give --replay, or a larger hwm and buffer_steps in --kv-events-config"
    if session.malformed or counts.unreadable:
        yield f"not understood: {session.malformed} messages, {counts.unreadable} events"
    if counts.clears:
        yield f"the engine emptied its cache {counts.clears} times; a tier below is taken to keep what it has"
