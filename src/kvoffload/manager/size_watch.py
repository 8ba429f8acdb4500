"""What would a host tier of another size give? A running engine's own answer, from a sample of what it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.request import GroupGeometry, RequestState
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.policies.curve import SampledCurve, hash_places

FACTORS = {"0.5": 0.5, "1": 1.0, "2": 2.0, "4": 4.0}
"""The sizes, as multiples of the one that the tier has; by the label of the metric."""
_MAX_SAMPLED = 1024
"""Keys that are remembered: about 150 KB. It bounds the time, too: what is not sampled costs next to nothing."""
_WINDOW = 16
"""What was asked before the last so many fillings of the tier counts half, a quarter, …"""
_PUBLISH_EVERY = 32_768
"""Chunks asked for; the first times come sooner. A curve takes longer to be computed than many requests to be counted."""
_PUBLISH_GROWTH = 8


class SizeWatch:
    """LRU's hit ratio at several sizes, for the first group of full attention; models without one have no curve.

    Args:
        geometries: Of each group.
        tiers: The host tier of each group.
        recorder: Gets the gauges, now and then.
    """

    def __init__(
        self, geometries: Sequence[GroupGeometry], tiers: Sequence[HostTier], recorder: Recorder
    ) -> None:
        full = [index for index, geometry in enumerate(geometries) if not geometry.is_sparse]
        self._recorder = recorder
        self._unpublished = 0
        self._asked = 0
        self._curve: SampledCurve | None = None
        if not full or not tiers[full[0]].num_slots:
            return
        self._group = full[0]
        slots = tiers[self._group].num_slots
        capacities = [max(1, int(slots * factor)) for factor in FACTORS.values()]
        self._places_of, rate = hash_places(min(1.0, _MAX_SAMPLED / capacities[-1]))
        # It is told what is in the sample, and never asks.
        self._curve = SampledCurve(capacities, list, rate, window=_WINDOW * slots)

    def use(self, state: RequestState, tokens: int) -> None:
        """A request is over of which the tier may have `tokens` from its start."""
        if self._curve is None:
            return
        group = state.groups[self._group]
        # The keys themselves are mostly not looked at: they have left the processor's cache, and that is all the cost.
        firsts = group.key_starts[: max(0, tokens) // group.geometry.tokens_per_chunk]
        count, keys = len(firsts), group.keys
        self._curve.use_sampled(count, [keys[place] for place in self._places_of(keys, firsts)])
        self._asked += count
        self._unpublished += count
        if count and self._unpublished >= min(_PUBLISH_EVERY, self._asked // _PUBLISH_GROWTH):
            self._publish(self._curve)

    def _publish(self, curve: SampledCurve) -> None:
        self._unpublished = 0
        for size, estimate in zip(FACTORS, curve.estimates(), strict=True):
            self._recorder.set(m.ESTIMATED_HIT_RATIO, round(estimate.hit_ratio, 4), size=size)
            self._recorder.set(m.ESTIMATED_HIT_RATIO_ERROR, round(estimate.error, 4), size=size)

    def clear(self) -> None:
        """The tier was cleared."""
        if self._curve is not None:
            self._curve.clear()
