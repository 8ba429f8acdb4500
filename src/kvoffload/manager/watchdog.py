"""Says when much is stored and nothing is ever loaded, once a period, with the likely cause.

A state machine without a clock of its own: it is told of every admitted request and of evictions, and reads counters.
A load that succeeds starts it anew, and so does a reset. Only new stores can make it speak: an idle engine is left alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.lane import TierLane
from kvoffload.manager.request import RequestState
from kvoffload.manager.staging import LoadPolicy
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.types import LookupResult

logger = logging.getLogger(__name__)

_EVERY_S = 1.0
_MAX_GHOSTS = 65_536


class Admitted(Enum):
    """Why an admitted request loads nothing."""

    SKIPPED = "it wished so, or its limit is below a chunk"
    SHORT = "it is shorter than one chunk"
    ON_DEVICE = "the device had all of its chunks"
    EVICTED = "its first missing chunk was stored and evicted"
    UNSEEN = "its first missing chunk was not stored, as far as is remembered"
    NOT_TAKEN = "its next chunk is there, but no load followed"


class Cause(Enum):
    """Why nothing is loaded; the value is the metric's label."""

    LOADS_FAIL = "loads_fail"
    LOAD_POLICY = "load_policy"
    REQUESTS_SKIP = "requests_skip"
    SHORT_PROMPTS = "short_prompts"
    DEVICE_SERVES = "device_serves"
    TOO_SMALL = "too_small"
    OTHER_NAMESPACES = "other_namespaces"
    NEVER_REPEATED = "never_repeated"
    NOT_TAKEN = "not_taken"


_CAUSE_OF = {
    Admitted.SKIPPED: Cause.REQUESTS_SKIP,
    Admitted.SHORT: Cause.SHORT_PROMPTS,
    Admitted.ON_DEVICE: Cause.DEVICE_SERVES,
    Admitted.EVICTED: Cause.TOO_SMALL,
    Admitted.UNSEEN: Cause.NEVER_REPEATED,
    Admitted.NOT_TAKEN: Cause.NOT_TAKEN,
}

_TEXT = {
    Cause.LOADS_FAIL: "every load fails; see the log for the errors of the copies or tiers",
    Cause.LOAD_POLICY: "load_policy keeps requests from the tiers below (never, or recomputing is measured to be faster); "
    "set load_policy to always to load nevertheless",
    Cause.REQUESTS_SKIP: "most requests ask not to be served from the cache (skip, max_load_tokens, prompt logprobs, or "
    "kv_transfer_params that are not valid: kvoffload_bad_request_params)",
    Cause.SHORT_PROMPTS: "most prompts are shorter than one chunk; a smaller blocks_per_chunk would let them be found",
    Cause.DEVICE_SERVES: "the engine's own prefix cache has all that comes back; the host would be read only when that is "
    "too small",
    Cause.TOO_SMALL: "chunks are evicted before they are asked for again; raise cpu_bytes_to_use or add a tier below",
    Cause.OTHER_NAMESPACES: "a directory holds this model's chunks under other namespaces only: what the keys depend on (hash "
    "seed, dtype, chunk size, parallel sizes, engine version) has changed since; compare with `kvoffload stat`",
    Cause.NEVER_REPEATED: "prompts do not repeat (or differ early: a time or an id at the beginning of a system prompt, a "
    "cache_salt for each request); store_threshold=2 would store only what comes back",
    Cause.NOT_TAKEN: "chunks are there, but the engine does not load them (waits that time out: "
    "kvoffload_pending_timeouts; no free blocks)",
}


@dataclass(frozen=True, slots=True)
class WatchdogConfig:
    """When it speaks."""

    min_share: float = 0.5
    """Of the host's capacity, stored since the last load."""
    min_chunks: int = 64
    min_requests: int = 50
    quiet_s: float = 300.0
    """Since the last load, reset or start."""
    period_s: float = 3600.0
    """From one warning to the next, at least."""


class Watchdog:
    """See the module.

    Args:
        recorder: Whose counters it reads, and where it counts.
        capacity_chunks: Of the host.
        config: When it speaks.
        other_namespaces: How many other namespaces of the same model the tiers below hold; asked before a warning.
        never_loads: The load policy forbids loads from the tiers below, and there are some.
    """

    def __init__(
        self,
        recorder: Recorder,
        capacity_chunks: int,
        config: WatchdogConfig | None = None,
        other_namespaces: Callable[[], int] = lambda: 0,
        *,
        never_loads: bool = False,
    ) -> None:
        self._recorder = recorder
        self._config = config or WatchdogConfig()
        self._enough_chunks = max(self._config.min_chunks, self._config.min_share * capacity_chunks)
        self._other_namespaces = other_namespaces
        self._never_loads = never_loads
        self._max_ghosts = min(_MAX_GHOSTS, 4 * capacity_chunks + 16)
        # Two generations: the older is forgotten as a whole, which costs nothing per key.
        self._ghosts: tuple[set[OffloadKey], set[OffloadKey]] = (set(), set())
        self._admitted: Counter[Admitted] = Counter()
        self._start: Mapping[str, float] = recorder.values()
        self._since_s: float | None = None
        self._looked_s = float("-inf")
        self._said_s = float("-inf")

    def evicted(self, keys: Sequence[OffloadKey]) -> None:
        """These chunks have made room for others. A bounded number of them is remembered."""
        if not keys:
            return
        young, old = self._ghosts
        if len(young) >= self._max_ghosts // 2:
            self._ghosts = (set(keys), young)
            old.clear()
        else:
            young.update(keys)

    def was_evicted(self, key: OffloadKey) -> bool:
        """Whether the chunk is known to have been here."""
        return key in self._ghosts[0] or key in self._ghosts[1]

    def note(self, why: Admitted) -> None:
        """A request was admitted without a load."""
        self._admitted[why] += 1

    def reset(self) -> None:
        """The tiers were cleared: what is not found now says nothing."""
        self._ghosts = (set(), set())
        self._since_s = None

    def look(self, now_s: float) -> Cause | None:
        """Warn if it is time. Cheap unless a second has passed.

        Returns:
            The cause if it has warned.
        """
        if now_s - self._looked_s < _EVERY_S:
            return None
        self._looked_s = now_s
        if self._since_s is None or self._grown(m.LOADED_CHUNKS.name) > 0:
            self._begin(now_s)
            return None
        config = self._config
        if (
            now_s - self._since_s < config.quiet_s
            or now_s - self._said_s < config.period_s
            or self._grown(m.STORED_CHUNKS.name) < self._enough_chunks
            or self._admitted.total() < config.min_requests
        ):
            return None
        cause = self._cause()
        self._recorder.count(m.USELESS_STORE_WARNINGS, cause=cause.value)
        logger.warning(
            "kvoffload: %d chunks were stored in the last %d s and none was loaded; likely cause: %s",
            self._grown(m.STORED_CHUNKS.name),
            now_s - self._since_s,
            _TEXT[cause],
        )
        self._said_s = now_s
        self._begin(now_s)
        return cause

    def _begin(self, now_s: float) -> None:
        self._since_s = now_s
        self._start = self._recorder.values()
        self._admitted.clear()

    def _grown(self, series: str) -> float:
        return self._recorder.value_of(series) - self._start.get(series, 0)

    def _cause(self) -> Cause:
        if self._grown(m.LOAD_FAILED_CHUNKS.name) > 0 or self._failed_below() > 0:
            return Cause.LOADS_FAIL
        if self._grown(m.PROMOTION_SKIPPED_CHUNKS.name) > 0:
            return Cause.LOAD_POLICY
        cause = _CAUSE_OF[self._admitted.most_common(1)[0][0]]
        if cause is Cause.TOO_SMALL and self._never_loads:
            return Cause.LOAD_POLICY
        # Few prompts repeat anywhere: that some were evicted too early says more than that most are new.
        if cause is Cause.NEVER_REPEATED and self._admitted[Admitted.EVICTED] * 10 >= self._admitted.total():
            return Cause.LOAD_POLICY if self._never_loads else Cause.TOO_SMALL
        if cause is Cause.NEVER_REPEATED and self._other_namespaces() > 0:
            return Cause.OTHER_NAMESPACES
        return cause

    def _failed_below(self) -> float:
        return sum(
            value - self._start.get(series, 0)
            for series, value in self._recorder.values().items()
            if series.startswith(m.TIER_CHUNKS.name) and "verb=load,outcome=failed" in series
        )


def watchdog_over(
    recorder: Recorder, capacity_chunks: int, lanes: Sequence[TierLane], policy: LoadPolicy
) -> Watchdog:
    """A watchdog for a host of that capacity, over these tiers."""
    return Watchdog(
        recorder,
        capacity_chunks,
        other_namespaces=lambda: sum(lane.tier.stats().other_namespaces for lane in lanes),
        never_loads=bool(lanes) and policy is LoadPolicy.NEVER,
    )


def why_no_load(state: RequestState, tier: HostTier, watchdog: Watchdog, computed_tokens: int) -> Admitted:
    """Why an admitted request loads nothing, judged by its first group. Mutates nothing.

    Args:
        state: The request.
        tier: The host tier of the first group.
        watchdog: Remembers what was evicted.
        computed_tokens: What the device had.
    """
    info, group = state.info, state.groups[0]
    span = group.geometry.tokens_per_chunk
    if info.skip_load or state.computes_all or (info.max_load_tokens or span) < span:
        return Admitted.SKIPPED
    if not group.keys:
        return Admitted.SHORT
    first = computed_tokens // span
    if first >= len(group.keys):
        return Admitted.ON_DEVICE
    if tier.lookup(group.keys[first]) is LookupResult.HIT:
        return Admitted.NOT_TAKEN
    return Admitted.EVICTED if watchdog.was_evicted(group.keys[first]) else Admitted.UNSEEN
