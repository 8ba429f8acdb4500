"""How much of a request can be loaded: pure functions over what the tiers say. They mutate nothing.

The first chunk may begin before the tokens that the device has; the boundary is after the last hit:

    tokens             0 ........... computed ................ boundary ....... known
    full attention     |----|----|----|####|####|####|####|####|----|----|----|----|      all chunks up to the boundary
    window             |----|----|----|----|----|----|####|####|----|----|----|----|      the last window before it
    chunked-local      |----|----|----|----|----|----|----|####|----|----|----|----|      what of its stretch is before it
    recurrent state    |----|----|----|----|----|----|----|####|----|----|----|----|      the one state at it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.manager.load_plan import chunk_range
from kvoffload.manager.request import GroupGeometry


@dataclass(frozen=True, slots=True)
class Span:
    """What a load may be: from `computed_tokens` (the device has what is before) to at most `limit_tokens`."""

    computed_tokens: int
    limit_tokens: int | None
    """None: no limit but what is known."""
    unit_tokens: int
    """It ends on a multiple of this many tokens: on a chunk's edge in every group, and where the engine's own hits do."""


@dataclass(frozen=True, slots=True)
class GroupChunks:
    """One group of a request: which of its chunks can be had, from the one that holds token `computed_tokens` on."""

    geometry: GroupGeometry
    there: Sequence[bool]


def usable_boundary(groups: Sequence[GroupChunks], span: Span) -> int:
    """The largest boundary that every group can serve; `computed_tokens` if there is no gain."""
    boundary = min(_known_tokens(group, span) for group in groups)
    if span.limit_tokens is not None:
        boundary = min(boundary, span.limit_tokens)
    boundary -= boundary % span.unit_tokens
    sparse = [(group, _runs(group.there)) for group in groups if group.geometry.is_sparse]
    while boundary > span.computed_tokens:
        if all(_serves(group.geometry, runs, span.computed_tokens, boundary) for group, runs in sparse):
            return boundary
        boundary -= span.unit_tokens
    return span.computed_tokens


def _known_tokens(group: GroupChunks, span: Span) -> int:
    """Up to where the group could serve if its reach did not matter: all known chunks, or the leading ones that are there."""
    there = group.there
    count = len(there)
    if not group.geometry.is_sparse:
        count = next((index for index, is_there in enumerate(there) if not is_there), count)
    per_chunk = group.geometry.tokens_per_chunk
    return (span.computed_tokens // per_chunk + count) * per_chunk


def _runs(there: Sequence[bool]) -> list[int]:
    """For each chunk how many in a row are there, up to it."""
    runs = []
    run = 0
    for is_there in there:
        run = run + 1 if is_there else 0
        runs.append(run)
    return runs


def _serves(geometry: GroupGeometry, runs: Sequence[int], computed_tokens: int, boundary: int) -> bool:
    needed = chunk_range(geometry, range(computed_tokens, boundary))
    first = computed_tokens // geometry.tokens_per_chunk
    return not needed or runs[needed.stop - 1 - first] >= len(needed)
