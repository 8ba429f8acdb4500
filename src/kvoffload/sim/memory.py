"""The memory of the engine model: device blocks of all workers and the shared host rows, with real bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvoffload.layout.chunk_format import padded_bytes
from kvoffload.layout.direct import DirectLayout
from kvoffload.sim.block_pool import NULL_BLOCK
from kvoffload.sim.patterns import ENTRY_BYTES, START, chain, mix, salt, state_page
from kvoffload.sim.setups import Setup
from kvoffload.worker.pages import GroupPages, bind_group

NUM_LAYERS = 2
ROW_PAD_BYTES = 32
NULL_ENTRY = np.uint64(0x0BAD_0BAD_0BAD_0BAD)
"""Fills the null block, for ever: right for nobody."""


class Place(NamedTuple):
    """One layer of one group in one worker."""

    worker: int
    group: int
    layer: int


class Memory:
    """Device blocks per worker and layer (all groups share one storage, as in a real engine), host rows per group.

    Args:
        setup: The geometry. Rows are whole pages if there are tiers that need them.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._chunk_rows: dict[tuple[int, tuple[int, ...], int], NDArray[np.uint8]] = {}
        widest = max(setup.tokens_per_block)
        self.device = [
            [np.zeros((setup.num_blocks, widest), np.uint64) for _ in range(NUM_LAYERS)]
            for _ in range(setup.world_size)
        ]
        for storages in self.device:
            for storage in storages:
                storage[NULL_BLOCK] = NULL_ENTRY
        self.layouts = [
            DirectLayout(setup.blocks_per_chunk, setup.world_size, NUM_LAYERS * tokens * ENTRY_BYTES)
            for tokens in setup.tokens_per_block
        ]
        strides = [layout.row_bytes + ROW_PAD_BYTES for layout in self.layouts]
        if "fs" in setup.below:
            strides = [padded_bytes(stride) for stride in strides]
        self.rows = [np.zeros((setup.num_slots, stride), np.uint8) for stride in strides]

    def bind(self, worker: int) -> list[GroupPages]:
        """What one worker's copier gets."""
        groups = []
        for layout, tokens, rows in zip(self.layouts, self.setup.tokens_per_block, self.rows, strict=True):
            pages = [storage.view(np.uint8)[:, : tokens * ENTRY_BYTES] for storage in self.device[worker]]
            groups.append(bind_group(layout, worker, pages, rows))
        return groups

    def last(self, place: Place, table: Sequence[int], tokens: int) -> int:
        """The entry behind which the next token comes: that of the last token, or the state behind it."""
        per_block = self.setup.tokens_per_block[place.group]
        entry = 0 if self.setup.is_state(place.group) else (tokens - 1) % per_block
        block = table[(tokens - 1) // per_block]
        return int(self.device[place.worker][place.layer][block, entry] ^ salt(*place))

    def verify(self, place: Place, table: Sequence[int], tokens: int, right: NDArray[np.uint64]) -> None:
        """Raise AssertionError unless a table holds what the next token looks at.

        Args:
            place: The layer.
            table: Its blocks.
            tokens: The next one is behind so many.
            right: The right entries of the sequence.
        """
        per_block = self.setup.tokens_per_block[place.group]
        storage = self.device[place.worker][place.layer]
        if not tokens:
            return
        if self.setup.is_state(place.group):
            page = storage[table[(tokens - 1) // per_block], :per_block] ^ salt(*place)
            assert_right(page, state_page(right[tokens - 1], per_block), 0, (place, table))
            return
        first = self.setup.first_seen(place.group, tokens)
        begin = first // per_block
        blocks = list(table[begin : -(-tokens // per_block)])
        entries = storage[blocks, :per_block].reshape(-1)[
            first - begin * per_block : tokens - begin * per_block
        ]
        assert_right(entries ^ salt(*place), right[first:tokens], first, (place, table))

    def write(self, place: Place, table: Sequence[int], start: int, entries: NDArray[np.uint64]) -> None:
        """What a step leaves of the tokens from `start` on: an entry of each, or the state behind the last one."""
        per_block = self.setup.tokens_per_block[place.group]
        storage = self.device[place.worker][place.layer]
        if self.setup.is_state(place.group):
            block = table[(start + len(entries) - 1) // per_block]
            storage[block, :per_block] = state_page(entries[-1], per_block) ^ salt(*place)
            return
        positions = np.arange(start, start + len(entries))
        blocks = np.array(table, dtype=np.int64)[positions // per_block]
        storage[blocks, positions % per_block] = entries ^ salt(*place)

    def places(self, worker: int) -> list[Place]:
        """All layers of one worker."""
        groups = range(len(self.setup.tokens_per_block))
        return [Place(worker, group, layer) for group in groups for layer in range(NUM_LAYERS)]

    def forward(
        self,
        worker: int,
        tables: Sequence[Sequence[int]],
        tokens: tuple[int, ...],
        span: range,
        weights: int,
    ) -> None:
        """Run the tokens of `span` through one worker's model: reads what is before them, writes their entries.

        Raises:
            AssertionError: an entry that was read is wrong.
        """
        right = chain(tokens, weights)
        for place in self.places(worker):
            table = tables[place.group]
            self.verify(place, table, span.start, right)
            self.write(place, table, span.start, right[span.start : span.stop])

    def forward_on_mixed(
        self,
        worker: int,
        tables: Sequence[Sequence[int]],
        tokens: tuple[int, ...],
        span: range,
        weights: int,
    ) -> None:
        """As `forward`, for a request of which some tokens were computed with older weights: whatever is there."""
        for place in self.places(worker):
            table = tables[place.group]
            previous, values = self.last(place, table, span.start) if span.start else START, []
            for token in tokens[span.start : span.stop]:
                previous = mix(previous, token, weights)
                values.append(previous)
            self.write(place, table, span.start, np.array(values, dtype=np.uint64))

    def chunk_row(self, group: int, tokens: tuple[int, ...], chunk: int, weights: int) -> NDArray[np.uint8]:
        """The right bytes of a chunk in a host row, from the documented layout: worker, then layer, then block."""
        span = self.setup.tokens_per_block[group] * self.setup.blocks_per_chunk
        head = tokens[: (chunk + 1) * span]
        name = (group, head, weights)
        if name not in self._chunk_rows:
            entries = chain(head, weights)[chunk * span :]
            if self.setup.is_state(group):
                entries = state_page(entries[-1], span)
            parts = [
                entries ^ salt(worker, group, layer)
                for worker in range(self.setup.world_size)
                for layer in range(NUM_LAYERS)
            ]
            self._chunk_rows[name] = np.concatenate(parts).view(np.uint8)
        return self._chunk_rows[name]


def assert_right(
    found: NDArray[np.uint64], right: NDArray[np.uint64], first_token: int, where: object
) -> None:
    """Raise AssertionError unless the entries that were found, the first one of `first_token`, are right."""
    wrong = np.flatnonzero(found != right)
    assert not wrong.size, f"WRONG KV at tokens {(wrong + first_token).tolist()} of (place, table) {where}"
