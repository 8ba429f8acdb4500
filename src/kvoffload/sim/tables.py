"""The block tables of one cache group: how they grow, what is given away before a request ends, what a prefix hit adopts.

The rules are those of a real engine, which are the ones that have broken connectors:

    full attention    0 1 2 3 4 5 6     every block stays until the request ends
    window            · · · · 4 5 6     a block that no further token sees is given away; a null block stands in its place
    recurrent state   · · · · · 5 6     a step adds one block at most and writes the state behind its last token into the last one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kvoffload.sim.block_pool import NULL_BLOCK, BlockPool
from kvoffload.sim.setups import Setup


class GroupTables:
    """One group's rules; the tables belong to the requests.

    Args:
        pool: The blocks, which all groups share.
        setup: The geometry.
        group: Index of the group.
    """

    def __init__(self, pool: BlockPool, setup: Setup, group: int) -> None:
        self._pool = pool
        self._per_block = setup.tokens_per_block[group]
        self._first_seen = partial(setup.first_seen, group)
        self._is_state = setup.is_state(group)

    def hit(self, tokens: int, find: Callable[[int], int | None]) -> list[int] | None:
        """The blocks with which a request may go on behind so many tokens, which are a multiple of a block.

        Args:
            tokens: Where the prefix ends.
            find: Says for the index of a block where its content is cached.

        Returns:
            A table with null blocks before those that are needed; None if one of these is not cached.
        """
        first = self._skipped(tokens)
        found = [find(index) for index in range(first, tokens // self._per_block)]
        return None if None in found else [NULL_BLOCK] * first + found  # type: ignore[operator]

    def adopt(self, table: list[int], blocks: Sequence[int], tokens: int) -> None:
        """A request begins with cached blocks and will go on behind so many tokens, some of which are to be loaded."""
        first = self._skipped(tokens)
        kept = list(blocks[first:])
        self._pool.adopt(kept)
        table.extend([NULL_BLOCK] * first + kept)

    def give_away(self, table: list[int], tokens: int) -> int:
        """Release what no token behind so many will look at. Returns the number of blocks."""
        behind = min(self._skipped(tokens), len(table))
        given = [block for block in table[:behind] if block != NULL_BLOCK]
        self._pool.release(given)
        table[:behind] = [NULL_BLOCK] * behind
        return len(given)

    def missing(self, table: Sequence[int], tokens: int) -> int:
        """Blocks that `grow` would take."""
        blocks = -(-tokens // self._per_block) - len(table)
        return min(blocks, 1) if self._is_state and blocks > 0 else max(blocks, 0)

    def grow(self, table: list[int], tokens: int) -> list[int]:
        """Make room for so many tokens; returns what is new in the table. There must be blocks enough."""
        count = self.missing(table, tokens)
        nulls = max(0, -(-tokens // self._per_block) - len(table) - count)
        fresh = [NULL_BLOCK] * nulls + self._pool.take(count)
        table.extend(fresh)
        return fresh

    def _skipped(self, tokens: int) -> int:
        """Blocks at the beginning that nobody looks at behind so many tokens."""
        return self._first_seen(tokens) // self._per_block
