"""What of a request the host could load now, and what it would have to fetch from the tiers below. Mutates nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.load_plan import chunk_range
from kvoffload.manager.locating import Want
from kvoffload.manager.prefix import GroupChunks, Span, usable_boundary
from kvoffload.manager.request import GroupGeometry, GroupState, RequestState
from kvoffload.types import LookupResult


@dataclass(frozen=True, slots=True)
class Match:
    """What the host has of a request."""

    tokens: int
    """So many tokens beyond those of the device can be loaded now."""
    pending: bool
    """Chunks that are just being written would make it more."""


class Matching:
    """Asks the host tiers.

    Args:
        geometries: Of each group.
        tiers: The host tier of each group.
        row_bytes: Of each group, bytes of a row.
        unit_tokens: A load ends on a multiple of this many tokens, beside the chunks' edges.
    """

    def __init__(
        self,
        geometries: Sequence[GroupGeometry],
        tiers: Sequence[HostTier],
        row_bytes: Sequence[int],
        unit_tokens: int,
    ) -> None:
        self._tiers = tuple(tiers)
        self._row_bytes = tuple(row_bytes)
        self._unit_tokens = math.lcm(unit_tokens, *(geometry.tokens_per_chunk for geometry in geometries))
        self._is_plain = len(geometries) == 1 and not geometries[0].is_sparse

    def span(self, state: RequestState, computed_tokens: int, num_tokens: int | None) -> Span:
        """Where a load for the request may end.

        Args:
            state: The request.
            computed_tokens: Tokens that the device has already.
            num_tokens: All tokens of the request, None if that does not matter.
        """
        limits = []
        if state.info.max_load_tokens is not None:
            limits.append(computed_tokens + state.info.max_load_tokens)
        if num_tokens is not None and not self._is_plain:
            # The last token is always computed anew. With full attention it may be behind the load; a state or a
            # window, however, goes on from the boundary and from nowhere else.
            limits.append(num_tokens - 1)
        return Span(computed_tokens, min(limits, default=None), self._unit_tokens)

    def span_below(self, span: Span) -> Span | None:
        """What the tiers below must know of it; see `locating.locate`."""
        return None if self._is_plain else span

    def look(self, state: RequestState, span: Span) -> Match:
        """What the host has."""
        if self._is_plain:
            return self._look_plain(state.groups[0], span)
        found = [
            tier.lookup_all(_keys_from(group, span))
            for group, tier in zip(state.groups, self._tiers, strict=True)
        ]
        now = [[result is LookupResult.HIT for result in results] for results in found]
        boundary = self._boundary(state, now, span)
        soon = boundary
        if any(LookupResult.HIT_PENDING in results for results in found):
            later = [[result is not LookupResult.MISS for result in results] for results in found]
            soon = self._boundary(state, later, span)
        return Match(boundary - span.computed_tokens, soon > boundary)

    def wants(self, state: RequestState, span: Span) -> list[Want]:
        """What the tiers below are asked for: all chunks that a load could need and the host might lack."""
        wants = []
        for index, group in enumerate(state.groups):
            keys = _keys_from(group, span)
            if span.limit_tokens is not None:
                per_chunk = group.geometry.tokens_per_chunk
                first = span.computed_tokens // per_chunk
                keys = keys[: max(0, span.limit_tokens // per_chunk - first)]
            head: Sequence[OffloadKey] = keys
            if self._is_plain:
                hits = self._tiers[0].lookup_prefix(keys)[0]
                head, keys = keys[:hits], keys[hits:]
            wants.append(Want(index, keys, group.geometry, self._row_bytes[index], group.own_keys, head))
        return wants

    def is_being_loaded(self, state: RequestState, tokens: range) -> bool:
        """Whether a running load reads a chunk that a load of these tokens needs."""
        for group, tier in zip(state.groups, self._tiers, strict=True):
            chunks = chunk_range(group.geometry, tokens)
            if tier.any_loading(group.keys[chunks.start : chunks.stop]):
                return True
        return False

    def _look_plain(self, group: GroupState, span: Span) -> Match:
        """The usual case, without a loop: one group of full attention."""
        per_chunk = group.geometry.tokens_per_chunk
        hits, pending = self._tiers[0].lookup_prefix(_keys_from(group, span))
        boundary = (span.computed_tokens // per_chunk + hits) * per_chunk
        if span.limit_tokens is not None:
            boundary = min(boundary, span.limit_tokens)
        boundary -= boundary % span.unit_tokens
        return Match(max(0, boundary - span.computed_tokens), pending)

    @staticmethod
    def _boundary(state: RequestState, there: Sequence[Sequence[bool]], span: Span) -> int:
        groups = [
            GroupChunks(group.geometry, known) for group, known in zip(state.groups, there, strict=True)
        ]
        return usable_boundary(groups, span)


def _keys_from(group: GroupState, span: Span) -> Sequence[OffloadKey]:
    return group.keys[span.computed_tokens // group.geometry.tokens_per_chunk :]
