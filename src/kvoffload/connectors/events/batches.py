"""What an engine tells in one message, as plain data. No wire format here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Consecutive blocks of one prompt that the engine has put into a cache."""

    hashes: tuple[bytes, ...]
    """Chained, in order."""
    parent: bytes | None
    """The hash of the block before the first one; None: there is none."""
    block_tokens: int
    group: int
    """Which group of layers."""
    kind: str | None
    """What kind of attention the group has; None: the engine does not say."""
    medium: str | None
    """Where the cache is; None: the engine does not say."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One message."""

    at_s: float
    """The engine's clock; may jump."""
    stored: tuple[StoredBlocks, ...]
    clears: int
    """How often the cache was emptied."""
    unreadable: int
    """Events that were not understood."""
