"""How one group's chunks lie in their files, and by which reads an engine gets the part of them that it needs. Pure.

ranges      ····█████····················██······        what the engine needs of a row
pieces      |       |       |       |       |            widened to whole pieces, which can be verified
reads       ████████                ████████             near ones joined: what lies between goes into a waste buffer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvoffload.layout.chunk_format import file_bytes, fitting_piece_bytes, header_bytes, padded_bytes
from kvoffload.layout.partial import RowShape
from kvoffload.layout.runs import merged_ranges

WASTE_BYTES = 16 * 1024
"""What may be read in vain to save a read: on the disks we know a read costs about as much as so many bytes more."""
_MAX_BUFFERS = 512
"""Of one read; the system takes 1024 at most."""


class Part(NamedTuple):
    """A stretch of a row."""

    start: int
    end: int


class Read(NamedTuple):
    """One read: consecutive bytes of the payload."""

    start: int
    """Where it begins in the payload."""
    parts: tuple[Part, ...]
    """What of it goes into the row, ascending; what lies between them is wasted."""

    @property
    def size_bytes(self) -> int:
        """What is read."""
        return self.parts[-1].end - self.start

    def buffers(self, row: memoryview, waste: memoryview) -> list[memoryview]:
        """Where the bytes go."""
        if len(self.parts) == 1 and self.parts[0].start == self.start:
            start, end = self.parts[0]
            return [row[start:end]]
        found, at = [], self.start
        for start, end in self.parts:
            if start > at:
                found.append(waste[: start - at])
            found.append(row[start:end])
            at = end
        return found


@dataclass(frozen=True, slots=True)
class ChunkForm:
    """How the chunks of one group lie in their files."""

    payload_bytes: int
    piece_bytes: int
    header_bytes: int
    padded_bytes: int
    """Length of the payload with its padding."""
    file_bytes: int
    single_file_bytes: int
    """Of a file whose payload is one piece, as the version before pieces wrote it."""
    reads: tuple[Read, ...] | None
    """What a load reads behind the header, pieces of `piece_bytes` given; None: everything."""
    part_bytes: int
    """Payload that such a load puts into a row."""

    @property
    def is_partial(self) -> bool:
        """Whether this engine has a part of each row only."""
        return self.reads is not None

    def has_length(self, size_bytes: int) -> bool:
        """Whether a file of this length can be such a chunk."""
        return size_bytes in (self.file_bytes, self.single_file_bytes)


def form_of(shape: RowShape | int) -> ChunkForm:
    """The form of a group's chunks: of rows of this shape, or of so many bytes."""
    shape = RowShape(shape) if isinstance(shape, int) else shape
    piece_bytes = fitting_piece_bytes(shape.row_bytes, shape.piece_bytes)
    reads = None if shape.ranges is None else plan_reads(shape.ranges, shape.row_bytes, piece_bytes)
    parts = [part for read in reads or () for part in read.parts]
    return ChunkForm(
        payload_bytes=shape.row_bytes,
        piece_bytes=piece_bytes,
        header_bytes=header_bytes(shape.row_bytes, piece_bytes),
        padded_bytes=padded_bytes(shape.row_bytes),
        file_bytes=file_bytes(shape.row_bytes, piece_bytes),
        single_file_bytes=file_bytes(shape.row_bytes),
        reads=reads,
        part_bytes=sum(min(end, shape.row_bytes) - start for start, end in parts),
    )


def plan_reads(
    ranges: Sequence[tuple[int, int]], payload_bytes: int, piece_bytes: int, waste_bytes: int = WASTE_BYTES
) -> tuple[Read, ...]:
    """The reads that fill these ranges and the pieces that they touch.

    Args:
        ranges: (start, length), ascending and disjoint.
        payload_bytes: Length of the payload.
        piece_bytes: Length of a piece, a multiple of 4096.
        waste_bytes: Longest gap that is read in vain.

    Returns:
        Ascending; every bound is that of a piece, or the end of the padded payload. The first one begins at 0 if what it
        wants is near the beginning.
    """
    bounds = np.asarray(ranges, dtype=np.int64).reshape(-1, 2)
    starts = bounds[:, 0] // piece_bytes * piece_bytes
    ends = -(-bounds.sum(axis=1) // piece_bytes) * piece_bytes
    pieces = merged_ranges(starts, ends - starts)
    reads: list[list[Part]] = []
    for start, length in pieces.tolist():
        part = Part(start, min(start + length, padded_bytes(payload_bytes)))
        is_near = bool(reads) and start - reads[-1][-1].end <= waste_bytes
        if is_near and len(reads[-1]) < _MAX_BUFFERS // 2:
            reads[-1].append(part)
        else:
            reads.append([part])
    found = [Read(parts[0].start, tuple(parts)) for parts in reads]
    if found and found[0].start <= waste_bytes:
        # Near to the header, so both come with one read.
        found[0] = found[0]._replace(start=0)
    return tuple(found)
