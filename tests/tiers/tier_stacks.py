"""What the tests of the tiers share: memory tiers under virtual time, and every wrapper around them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kvoffload.clock import ManualClock
from kvoffload.tiers.base import Tier, TierEntry, TierJob, TierReport, Verb
from kvoffload.tiers.memory import MemoryMedium, MemoryTier, MemoryTierConfig
from kvoffload.tiers.wrappers.base import TierWrapper
from kvoffload.tiers.wrappers.checksummed import ChecksumConfig, ChecksummedTier
from kvoffload.tiers.wrappers.delayed import DelayConfig, DelayedTier, Distribution
from kvoffload.tiers.wrappers.faults import FaultConfig
from kvoffload.tiers.wrappers.faulty import FaultyTier
from kvoffload.tiers.wrappers.metered import MeterConfig, MeteredTier
from kvoffload.tiers.wrappers.retrying import RetryConfig, RetryingTier
from kvoffload.tiers.wrappers.throttled import ThrottleConfig, ThrottledTier

BIG_BYTES = 2**24
Wrap = Callable[[Tier, ManualClock], Tier]


def memory(
    clock: ManualClock,
    *,
    medium: MemoryMedium | None = None,
    max_bytes: int = BIG_BYTES,
    latency_s: float = 0.0,
    max_pending_jobs: int = 64,
) -> MemoryTier:
    config = MemoryTierConfig(max_bytes=max_bytes, latency_s=latency_s, max_pending_jobs=max_pending_jobs)
    return MemoryTier(config, clock, medium=medium, pause=clock.advance)


def medium_of(tier: Tier) -> MemoryMedium:
    while isinstance(tier, TierWrapper):
        tier = tier.inner
    assert isinstance(tier, MemoryTier)
    return tier.medium


def metered(inner: Tier, clock: ManualClock) -> MeteredTier:
    return MeteredTier(inner, MeterConfig(), clock)


def throttled(inner: Tier, clock: ManualClock) -> ThrottledTier:
    return ThrottledTier(inner, ThrottleConfig(max_jobs=40, bytes_per_s=1e9), clock)


def retrying(inner: Tier, clock: ManualClock) -> RetryingTier:
    return RetryingTier(inner, RetryConfig(), clock, random.Random(1), clock.advance)


def checksummed(inner: Tier, clock: ManualClock) -> ChecksummedTier:
    return ChecksummedTier(inner, ChecksumConfig(), clock.advance)


def delayed(inner: Tier, clock: ManualClock) -> DelayedTier:
    config = DelayConfig(mean_s=0.05, distribution=Distribution.EXPONENTIAL)
    return DelayedTier(inner, config, clock, random.Random(2), clock.advance)


def faulty(inner: Tier, clock: ManualClock) -> FaultyTier:
    return FaultyTier(inner, FaultConfig(seed=3), medium_of(inner))


WRAPPERS: dict[str, Wrap] = {
    "metered": metered,
    "throttled": throttled,
    "retrying": retrying,
    "checksummed": checksummed,
    "delayed": delayed,
    "faulty": faulty,
}


def stack(inner: Tier, clock: ManualClock, wraps: Sequence[Wrap]) -> Tier:
    """Put wrappers around a tier, the first of them outermost."""
    for wrap in reversed(wraps):
        inner = wrap(inner, clock)
    return inner


def job(job_id: int, verb: Verb, keys: Sequence[bytes], buffers: Sequence[memoryview] = ()) -> TierJob:
    rows = buffers or [memoryview(b"")] * len(keys)
    return TierJob(job_id, verb, tuple(TierEntry(key, row) for key, row in zip(keys, rows, strict=True)))


def rows_of(*contents: bytes) -> list[memoryview]:
    return [memoryview(bytearray(content)) for content in contents]


def only(reports: Sequence[TierReport]) -> TierReport:
    assert len(reports) == 1, reports
    return reports[0]
