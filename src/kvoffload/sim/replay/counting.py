"""Misses and hits of one policy and one capacity, without time: the numbers that the literature compares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.sim.traces.base import TraceRequest


@dataclass(slots=True)
class PrefixHits:
    """Tokens of whole prompts, and those of them that a cached prefix saves."""

    hit_tokens: int = 0
    total_tokens: int = 0

    @property
    def ratio(self) -> float:
        """Token-weighted and prefix-contiguous: what an engine sees."""
        return self.hit_tokens / self.total_tokens if self.total_tokens else 0.0


class UnitCache:
    """A cache of keys of equal size, one access at a time; evicts before it inserts, as a tier does.

    Args:
        policy: Orders the keys; empty.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._expect = policy.expect
        self._known: set[OffloadKey] = set()
        self.misses = 0
        self.accesses = 0

    def prefix_of(self, keys: Iterable[OffloadKey]) -> int:
        """How many leading keys are there. Does not mutate."""
        known = self._known
        hits = 0
        for key in keys:
            if key not in known:
                break
            hits += 1
        return hits

    def access(self, keys: Iterable[OffloadKey]) -> list[bool]:
        """Use these keys one after the other; says of each whether it was there."""
        policy, known, capacity = self._policy, self._known, self._policy.capacity
        # Hits change the order only: told together before the next victim is asked for, they are told in time.
        used: list[OffloadKey] = []
        answers = []
        for key in keys:
            if key in known:
                used.append(key)
                answers.append(True)
                continue
            answers.append(False)
            if used:
                policy.touch(used)
                used.clear()
            self._expect((key,))
            if len(known) >= capacity:
                known.difference_update(policy.evict(1, _nobody))
            policy.insert((key,))
            known.add(key)
        if used:
            policy.touch(used)
        self.accesses += len(answers)
        self.misses += len(answers) - sum(answers)
        return answers


def count_misses(stream: Iterable[OffloadKey], policy: EvictionPolicy) -> int:
    """Misses at block level: a hit behind a miss counts."""
    cache = UnitCache(policy)
    cache.access(stream)
    return cache.misses


def count_prefix_hits(
    requests: Iterable[TraceRequest], block_tokens: int, policy: EvictionPolicy
) -> PrefixHits:
    """Tokens that a cached prefix saves.

    As in an engine: a prompt is looked up as a whole, then used from its tail to its head, so that the head is the most
    recent.
    """
    cache, found = UnitCache(policy), PrefixHits()
    for request in requests:
        hits = cache.prefix_of(request.keys)
        policy.chain(request.keys)
        cache.access(reversed(request.keys))
        found.hit_tokens += min(hits * block_tokens, request.input_tokens)
        found.total_tokens += request.input_tokens
    return found


def _nobody(_: OffloadKey) -> bool:
    return False
