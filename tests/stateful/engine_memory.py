"""The memory of the engine model: device blocks of all workers, the shared host rows, and the block pool."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from kv_patterns import ENTRY_BYTES, START, chain, mix, salt
from numpy.typing import NDArray

from kvoffload.layout.direct import DirectLayout
from kvoffload.worker.pages import GroupPages, bind_group

NUM_LAYERS = 2
ROW_PAD_BYTES = 32
NULL_BLOCK = 0


@dataclass(frozen=True)
class Setup:
    """One geometry and one set of options."""

    tokens_per_hash: int = 1
    tokens_per_block: tuple[int, ...] = (2,)
    """Of every group."""
    blocks_per_chunk: int = 1
    world_size: int = 1
    num_slots: int = 6
    """Of every group."""
    num_blocks: int = 40
    max_tokens: int = 24
    prefix_caching: bool = True
    prompt_only: bool = True
    store_threshold: int = 0
    async_scheduling: bool = False
    num_tiers: int = 0
    """Tiers below the host."""

    @property
    def align_tokens(self) -> int:
        """Computed tokens of the device's prefix cache and of loads are whole multiples of this."""
        return math.lcm(*self.tokens_per_block)

    @property
    def chunk_tokens(self) -> int:
        return max(self.tokens_per_block) * self.blocks_per_chunk


class Memory:
    """Device blocks per worker and layer (all groups share one storage, as in a real engine), host rows per group."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._chunk_rows: dict[tuple[int, tuple[int, ...], int, int], NDArray[np.uint8]] = {}
        widest = max(setup.tokens_per_block)
        self.device = [
            [np.zeros((setup.num_blocks, widest), np.uint64) for _ in range(NUM_LAYERS)]
            for _ in range(setup.world_size)
        ]
        self.layouts = [
            DirectLayout(setup.blocks_per_chunk, setup.world_size, NUM_LAYERS * tokens * ENTRY_BYTES)
            for tokens in setup.tokens_per_block
        ]
        self.rows = [
            np.zeros((setup.num_slots, layout.row_bytes + ROW_PAD_BYTES), np.uint8) for layout in self.layouts
        ]

    def bind(self, worker: int) -> list[GroupPages]:
        """What one worker's copier gets."""
        groups = []
        for layout, tokens, rows in zip(self.layouts, self.setup.tokens_per_block, self.rows, strict=True):
            pages = [storage.view(np.uint8)[:, : tokens * ENTRY_BYTES] for storage in self.device[worker]]
            groups.append(bind_group(layout, worker, pages, rows))
        return groups

    def read(
        self, worker: int, group: int, layer: int, table: Sequence[int], tokens: int
    ) -> NDArray[np.uint64]:
        """The entries of the first tokens of a block table, without salt."""
        per_block = self.setup.tokens_per_block[group]
        blocks = list(table[: -(-tokens // per_block)])
        entries = self.device[worker][layer][blocks, :per_block].reshape(-1)[:tokens]
        return entries ^ salt(worker, group, layer)

    def write(
        self,
        worker: int,
        group: int,
        layer: int,
        table: Sequence[int],
        *,
        start: int,
        entries: NDArray[np.uint64],
    ) -> None:
        """Set the entries of the tokens from `start` on."""
        per_block = self.setup.tokens_per_block[group]
        positions = np.arange(start, start + len(entries))
        blocks = np.array(table, dtype=np.int64)[positions // per_block]
        self.device[worker][layer][blocks, positions % per_block] = entries ^ salt(worker, group, layer)

    def layers(self) -> list[tuple[int, int]]:
        """All (group, layer)."""
        return [
            (group, layer) for group in range(len(self.setup.tokens_per_block)) for layer in range(NUM_LAYERS)
        ]

    def forward(
        self,
        worker: int,
        tables: Sequence[Sequence[int]],
        tokens: tuple[int, ...],
        span: range,
        weights: int,
        *,
        pure: bool,
    ) -> None:
        """Run the tokens of `span` through one worker's model: reads what is before them, writes their entries.

        Raises:
            AssertionError: a request that is `pure` (no token of it was computed with older weights) reads wrong KV.
        """
        right = chain(tokens, weights)
        start, stop = span.start, span.stop
        for group, layer in self.layers():
            table = tables[group]
            if pure:
                assert_right(
                    self.read(worker, group, layer, table, start), right, (worker, group, layer, table)
                )
                entries = right[start:stop]
            else:
                before = self.read(worker, group, layer, table, start)
                previous, values = int(before[-1]) if start else START, []
                for token in tokens[start:stop]:
                    previous = mix(previous, token, weights)
                    values.append(previous)
                entries = np.array(values, dtype=np.uint64)
            self.write(worker, group, layer, table, start=start, entries=entries)

    def chunk_row(self, group: int, tokens: tuple[int, ...], chunk: int, weights: int) -> NDArray[np.uint8]:
        """The right bytes of a chunk in a host row, from the documented layout: worker, then layer, then block."""
        name = (group, tokens, chunk, weights)
        if name not in self._chunk_rows:
            span = self.setup.tokens_per_block[group] * self.setup.blocks_per_chunk
            entries = chain(tokens[: (chunk + 1) * span], weights)[chunk * span :]
            parts = [
                entries ^ salt(worker, group, layer)
                for worker in range(self.setup.world_size)
                for layer in range(NUM_LAYERS)
            ]
            self._chunk_rows[name] = np.concatenate(parts).view(np.uint8)
        return self._chunk_rows[name]


def assert_right(found: NDArray[np.uint64], right: NDArray[np.uint64], where: object) -> None:
    wrong = np.flatnonzero(found != right[: len(found)])
    assert not wrong.size, f"WRONG KV at tokens {wrong.tolist()} of (worker, group, layer, table) {where}"


class BlockPool:
    """Blocks with reference counts, reused in the order in which they became free, and found again by hash."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_blocks))
        self._cached: dict[tuple[int, bytes], int] = {}
        self._names: dict[int, tuple[int, bytes]] = {}

    def take(self, count: int) -> list[int]:
        assert count <= len(self.free)
        blocks = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._forget(block)
            self.refs[block] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        # From the end, so that the beginning of a prefix stays longest.
        for block in reversed(blocks):
            self.refs[block] -= 1
            assert self.refs[block] >= 0, block
            if not self.refs[block]:
                self.free[block] = None

    def adopt(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.free.pop(block, None)
            self.refs[block] += 1

    def remember(self, block: int, group: int, name: bytes) -> None:
        if (group, name) not in self._cached and block not in self._names:
            self._cached[group, name] = block
            self._names[block] = (group, name)

    def find(self, group: int, name: bytes) -> int | None:
        return self._cached.get((group, name))

    def forget_all(self) -> None:
        self._cached.clear()
        self._names.clear()

    def _forget(self, block: int) -> None:
        name = self._names.pop(block, None)
        if name is not None:
            del self._cached[name]
