"""Belady's MIN: evicts what will not be needed for the longest time. It knows the future, so only a simulator has it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from kvoffload.keys.offload_key import OffloadKey


def next_uses(stream: Sequence[OffloadKey]) -> list[int]:
    """For each access, the index of the next one of the same key; the length of the stream if there is none."""
    never = len(stream)
    upcoming: dict[OffloadKey, int] = {}
    uses = [never] * never
    for index in range(never - 1, -1, -1):
        key = stream[index]
        uses[index] = upcoming.get(key, never)
        upcoming[key] = index
    return uses


def belady_answers(stream: Sequence[OffloadKey], capacity: int) -> list[bool]:
    """Whether each access hits, with the fewest misses that are possible (L. A. Belady, IBM Systems Journal, 1966)."""
    uses = next_uses(stream)
    resident: dict[OffloadKey, int] = {}
    # Entries whose key was used or evicted since are passed over.
    furthest: list[tuple[int, OffloadKey]] = []
    answers = []
    for key, use in zip(stream, uses, strict=True):
        is_hit = key in resident
        answers.append(is_hit)
        if not is_hit and len(resident) >= capacity:
            while True:
                until, victim = heapq.heappop(furthest)
                if resident.get(victim) == -until:
                    del resident[victim]
                    break
        resident[key] = use
        heapq.heappush(furthest, (-use, key))
    return answers


def count_belady_misses(stream: Sequence[OffloadKey], capacity: int) -> int:
    """The fewest misses that any policy can have at block level."""
    return belady_answers(stream, capacity).count(False)
