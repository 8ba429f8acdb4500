"""The direct layout: every worker's bytes as they are, side by side in one row per chunk.

    row of a chunk:   [ worker 0 | worker 1 | … | pad to a memory page ]
    worker's part:    [ layer 0: block 0 … block B-1 | layer 1: block 0 … block B-1 | … ]

The blocks of one layer lie together, so that consecutive device blocks make one copy. Here and nowhere else
stands where a byte of a chunk is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from kvoffload.config.schema import OffloadingConfig

FAMILY = "direct"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class DirectLayout:
    """Geometry of one group's chunks in the direct layout."""

    blocks_per_chunk: int
    world_size: int
    worker_bytes_per_block: int
    """Bytes of one block of one worker, all layers of the group together."""

    @property
    def worker_part_bytes(self) -> int:
        """Bytes of one worker in a row."""
        return self.worker_bytes_per_block * self.blocks_per_chunk

    @property
    def row_bytes(self) -> int:
        """Bytes of a whole chunk, all workers, without padding."""
        return self.worker_part_bytes * self.world_size

    def worker_offset_bytes(self, rank: int) -> int:
        """Where the part of worker `rank` begins in a row."""
        assert 0 <= rank < self.world_size, (rank, self.world_size)
        return rank * self.worker_part_bytes

    def layer_offsets_bytes(self, page_bytes: tuple[int, ...]) -> tuple[int, ...]:
        """Where each layer begins in a worker's part.

        Args:
            page_bytes: Bytes of one block of each layer, in the order of the group's layers.

        Raises:
            AssertionError: the pages do not add up to `worker_bytes_per_block`.
        """
        assert sum(page_bytes) == self.worker_bytes_per_block, (page_bytes, self.worker_bytes_per_block)
        ends = accumulate(size * self.blocks_per_chunk for size in page_bytes)
        return (0, *list(ends)[:-1])


def direct_layouts(config: OffloadingConfig) -> tuple[DirectLayout, ...]:
    """The layout of every group of an engine, in the order of `config.groups`."""
    return tuple(
        DirectLayout(
            blocks_per_chunk=config.cache.blocks_per_chunk,
            world_size=config.parallel.world_size,
            worker_bytes_per_block=group.worker_kv_bytes_per_block,
        )
        for group in config.groups
    )
