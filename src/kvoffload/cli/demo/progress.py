"""What the demo shows while it works: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as LiveLine

Step = Callable[[str], None]
"""Says which step begins now."""

_PLAIN_WIDTH = 132
_REFRESH_HZ = 2
"""Slow, because drawing takes processor time from what is being measured."""


class Progress:
    """Stages with a name and a duration; a stage may have steps.

    Args:
        console: Where to write.
        clock: Seconds; for the durations that are printed.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False)

    @contextmanager
    def stage(self, name: str, steps: int | None = None) -> Iterator[Step]:
        """Show `name` while the block runs; yields what says which step begins."""
        began = self._clock()
        if self.console.is_terminal:
            with self._live(name, steps) as step:
                yield step
        else:
            self.say(f"{name} …")
            yield lambda _text: None
        self.say(f"[green]✓[/] {name}: {self._clock() - began:.1f} s")

    @contextmanager
    def _live(self, name: str, steps: int | None) -> Iterator[Step]:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
        )
        with LiveLine(*columns, console=self.console, transient=True, refresh_per_second=_REFRESH_HZ) as live:
            task = live.add_task(name, total=steps)
            begun = 0

            def step(text: str) -> None:
                nonlocal begun
                live.update(task, completed=begun, description=f"{name}: {text}")
                begun += 1

            yield step


def make_console() -> Console:
    """A console that is wide enough for the table where the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)
