"""The engine's device blocks: reference counts, reuse in the order in which they became free, a prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

NULL_BLOCK = 0
"""Stands in a table where there is no block. It belongs to nobody and holds nothing."""


class BlockPool:
    """Blocks of one device.

    Args:
        num_blocks: How many there are, the null block included.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_blocks))
        self._cached: dict[tuple[int, bytes], int] = {}
        self._names: dict[int, tuple[int, bytes]] = {}

    def take(self, count: int) -> list[int]:
        """Give blocks away; what the prefix cache knew of them is forgotten."""
        assert count <= len(self.free), (count, len(self.free))
        blocks = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._forget(block)
            self.refs[block] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Take blocks back, the last one first: the beginning of a prefix stays longest."""
        for block in reversed(blocks):
            if block == NULL_BLOCK:
                continue
            self.refs[block] -= 1
            assert self.refs[block] >= 0, block
            if not self.refs[block]:
                self.free[block] = None

    def adopt(self, blocks: Sequence[int]) -> None:
        """Somebody else uses these, too."""
        for block in blocks:
            self.free.pop(block, None)
            self.refs[block] += 1

    def remember(self, block: int, group: int, name: bytes) -> bool:
        """What is in a block may be found again under this name. False if it, or another one, is already."""
        if (group, name) in self._cached or block in self._names:
            return False
        self._cached[group, name] = block
        self._names[block] = (group, name)
        return True

    def find(self, group: int, name: bytes) -> int | None:
        """The block of this name, if it still is what it was."""
        return self._cached.get((group, name))

    def forget_all(self) -> None:
        """The prefix cache is emptied."""
        self._cached.clear()
        self._names.clear()

    def _forget(self, block: int) -> None:
        name = self._names.pop(block, None)
        if name is not None:
            del self._cached[name]
