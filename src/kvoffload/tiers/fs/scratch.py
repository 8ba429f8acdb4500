"""What a thread needs for itself to read: a place for headers and for bytes that are read in vain, and a tally."""

from __future__ import annotations

import mmap
import threading

from kvoffload.layout.chunk_format import MAX_HEADER_BYTES
from kvoffload.tiers.chunk_form import WASTE_BYTES


class Scratch(threading.local):
    """Page-aligned, as O_DIRECT wants it. What is not used takes no memory."""

    def __init__(self) -> None:
        self._header = memoryview(mmap.mmap(-1, MAX_HEADER_BYTES))
        self.waste = memoryview(mmap.mmap(-1, WASTE_BYTES))
        """Holds nothing that anybody reads."""
        self.read_bytes = 0
        """Read from files and not yet counted."""
        self.moved_bytes = 0
        """Payload that the last load put into its row."""

    def header(self, size_bytes: int) -> memoryview:
        """A place for a header of this length; the same each time."""
        return self._header[:size_bytes]
