"""Stored blocks → runs: what one prompt computed, joined over the engine's steps. Pure; time is told.

An engine that computes a long prompt in several steps tells of each by an event of its own:

    step 1   blocks 0 … 31    parent: none   ┐
    step 2   blocks 32 … 63   parent: 31     ├ one run: blocks 0 … 69
    step 3   blocks 64 … 69   parent: 63     ┘

Were they accesses of their own, a tier that has lost block 3 would still hit from block 32 on, and an LRU tier would lose the
beginning of a prompt before its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

GAP_S = 5.0
"""A run is over when nothing was added for so long: more than a step of a busy engine."""
OPEN_S = 60.0
"""And when it is as old as this: it must be held back, and all that began after it."""
MAX_HELD_BLOCKS = 1 << 20


@dataclass(slots=True)
class Run:
    """Consecutive blocks that were computed."""

    start_s: float
    """When the first ones were stored."""
    last_s: float
    blocks: dict[bytes, None]
    """Their hashes, in order; none twice."""

    @property
    def tail(self) -> bytes:
        """The hash of the last block."""
        return next(reversed(self.blocks))


class Runs:
    """The runs that may still grow. Bounded in blocks and in time."""

    def __init__(self, max_held_blocks: int = MAX_HELD_BLOCKS) -> None:
        self._max_held_blocks = max_held_blocks
        self._held_blocks = 0
        self._now_s = float("-inf")
        self._order: deque[Run] = deque()
        self._by_tail: dict[bytes, list[Run]] = {}

    @property
    def held_blocks(self) -> int:
        """Blocks of runs that are not closed."""
        return self._held_blocks

    def add(self, at_s: float, hashes: Iterable[bytes], parent: bytes | None) -> None:
        """Blocks were stored; a clock that goes back is taken to stand still."""
        self._now_s = at_s = max(at_s, self._now_s)
        blocks = dict.fromkeys(hashes)
        if not blocks:
            return
        run = self._continued(parent, blocks)
        if run is None:
            run = Run(at_s, at_s, {})
            self._order.append(run)
        run.blocks.update(blocks)
        run.last_s = at_s
        self._held_blocks += len(blocks)
        self._by_tail.setdefault(run.tail, []).append(run)

    def closed(self) -> list[Run]:
        """Take out the runs that are over and have none before them that is not, in the order in which they began."""
        found = []
        while self._order and (self._is_over(self._order[0]) or self._held_blocks > self._max_held_blocks):
            found.append(self._take_first())
        return found

    def close_all(self) -> list[Run]:
        """Take out all."""
        return [self._take_first() for _ in range(len(self._order))]

    def _continued(self, parent: bytes | None, blocks: dict[bytes, None]) -> Run | None:
        """The oldest run that these blocks continue, no longer found by its tail."""
        if parent is None:
            return None
        for run in self._by_tail.get(parent, ()):
            if not self._is_over(run) and blocks.keys().isdisjoint(run.blocks):
                self._forget_tail(run)
                return run
        return None

    def _is_over(self, run: Run) -> bool:
        return self._now_s - run.last_s > GAP_S or self._now_s - run.start_s > OPEN_S

    def _take_first(self) -> Run:
        run = self._order.popleft()
        self._forget_tail(run)
        self._held_blocks -= len(run.blocks)
        return run

    def _forget_tail(self, run: Run) -> None:
        tail = run.tail
        others = [other for other in self._by_tail[tail] if other is not run]
        if others:
            self._by_tail[tail] = others
        else:
            del self._by_tail[tail]
