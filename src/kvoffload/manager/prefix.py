"""How much of a request can be loaded: pure functions over what the tier says. They mutate nothing.

The first chunk may begin before the tokens that the device has; the boundary is after the last hit:

    tokens  0 ........... computed ................ boundary ....... known
    chunks  |----|----|----|----|----|----|----|----|----|----|----|----|
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvoffload.keys.offload_key import OffloadKey


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What a lookup found."""

    boundary_tokens: int
    """The prefix can be loaded up to here; not above it."""
    pending: bool
    """A chunk that is just being written would make it longer."""


def longest_prefix(
    keys: Sequence[OffloadKey],
    tokens_per_chunk: int,
    computed_tokens: int,
    lookup_prefix: Callable[[Sequence[OffloadKey]], tuple[int, bool]],
) -> PrefixHit:
    """The usable prefix of a full-attention group: it must be contiguous.

    Args:
        keys: The keys of all known chunks of the request.
        tokens_per_chunk: Tokens that each of them spans.
        computed_tokens: Tokens that the device has already.
        lookup_prefix: See HostTier.lookup_prefix.
    """
    first = computed_tokens // tokens_per_chunk
    hits, pending = lookup_prefix(keys[first:])
    return PrefixHit(boundary_tokens=(first + hits) * tokens_per_chunk, pending=pending)


def usable_tokens(
    hits: Sequence[PrefixHit], computed_tokens: int, max_load_tokens: int | None, unit: int
) -> int:
    """Tokens beyond `computed_tokens` that all groups can serve; 0 if there is no gain.

    Args:
        hits: One per group.
        computed_tokens: Tokens that the device has already.
        max_load_tokens: The request's own limit on what may be loaded, None if it has none.
        unit: The answer ends on a multiple of this many tokens (a whole number of chunks in every group).
    """
    boundary = min(hit.boundary_tokens for hit in hits)
    if max_load_tokens is not None:
        boundary = min(boundary, computed_tokens + max_load_tokens)
    boundary -= boundary % unit
    return max(0, boundary - computed_tokens)
