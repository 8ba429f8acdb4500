"""Host memory first, other tiers below it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from kvoffload.clock import Clock
from kvoffload.config.options import TierOptions
from kvoffload.config.parse import WHERE
from kvoffload.config.schema import OffloadingConfig
from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import namespace_of
from kvoffload.layout.partial import RowShape, row_shape
from kvoffload.manager.lane import TierLane
from kvoffload.manager.manager import OffloadManager
from kvoffload.manager.settings import Below
from kvoffload.manager.staging import LoadPolicy, StagingConfig
from kvoffload.memory.shared_region import SharedOffloadRegion
from kvoffload.metrics.recorder import Recorder
from kvoffload.spec.cpu import CPUOffloadingSpec
from kvoffload.tiers.base import Tier, TierContext
from kvoffload.tiers.factory import open_tier
from kvoffload.tiers.wrappers.retrying import RetryConfig, RetryingTier
from kvoffload.types import SlotId


class TieringOffloadingSpec(CPUOffloadingSpec):
    """As `CPUOffloadingSpec`, with `secondary_tiers` below the host.

    The tiers live in the scheduler's process, which maps the workers' region: their threads read and write its rows
    in place.
    """

    has_secondary_tiers = True

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        if not config.options.secondary_tiers:
            raise ConfigError(
                f"{WHERE}: TieringOffloadingSpec needs secondary_tiers, e.g. [{{'type': 'fs', 'root_dir': '/kv'}}]; "
                "for host memory alone use CPUOffloadingSpec"
            )
        self._tiers: list[Tier] = []

    def make_manager(self, recorder: Recorder, clock: Clock) -> OffloadManager:
        """See OffloadingSpec. The workers must have made the region."""
        self._region = SharedOffloadRegion.attach(self.region_spec, self.config.options.join_timeout_s)
        strides = tuple(area.row_stride_bytes for area in self._plan.groups)
        shapes = self._shapes(strides)
        context = TierContext(
            namespace=namespace_of(self.config),
            row_bytes=tuple(shape.row_bytes for shape in shapes),
            shapes=shapes,
        )
        lanes = tuple(
            self._open_lane(options, context, clock) for options in self.config.options.secondary_tiers
        )
        staging = StagingConfig(
            load_policy=LoadPolicy(self.config.options.load_policy),
            deadline_s=self.config.options.promotion_deadline_s,
        )
        moved = tuple(shapes[group.group_id].touched_bytes for group in self.config.groups)
        return self._make_manager(recorder, clock, Below(lanes, staging, moved))

    def _shapes(self, strides: Sequence[int]) -> tuple[RowShape, ...]:
        """Keys carry the engine's own group ids, which have gaps where a group is not offloaded: 0 bytes there."""
        of_id = {
            group.group_id: row_shape(layout, stride, self.ranks_here)
            for group, layout, stride in zip(self.config.groups, self._layouts, strides, strict=True)
        }
        return tuple(of_id.get(group_id, RowShape(0)) for group_id in range(max(of_id) + 1))

    @property
    def ranks_here(self) -> Sequence[int]:
        """Whose workers share this region. One node has them all, so all of a row is needed.

        A spec for an engine on several nodes names those of its node here: of each row the tiers then load the ranges of
        these ranks, and store nothing.
        """
        return range(self.config.parallel.world_size)

    def describe(self) -> str:
        """See OffloadingSpec."""
        tiers = ", ".join(f"{tier.name} ({tier.describe()}{self._tokens_text(tier)})" for tier in self._tiers)
        return f"{super().describe()}; below it: {tiers}; load policy {self.config.options.load_policy}"

    def _tokens_text(self, tier: Tier) -> str:
        """About how many tokens fit into a tier, if all of it is this engine's."""
        capacity = tier.stats().capacity_bytes
        if capacity is None:
            return ""
        strides = [area.row_stride_bytes for area in self._plan.groups]
        tokens = min(self.config.tokens_per_chunk(index) for index in range(len(strides)))
        return f", about {capacity // sum(strides) * tokens} tokens"

    def close(self) -> None:
        """See OffloadingSpec."""
        for tier in self._tiers:
            tier.shutdown()
        self._tiers.clear()
        super().close()

    def _open_lane(self, options: TierOptions, context: TierContext, clock: Clock) -> TierLane:
        tier = open_tier(options, context)
        if options.lane.max_retries:
            tier = RetryingTier(tier, RetryConfig(options.lane.max_retries), clock, random.Random())  # noqa: S311 - jitter
        self._tiers.append(tier)
        # What waits for a tier keeps its place in the host: all lanes together never hold more than half of it.
        share = self._plan.total_bytes // (4 * len(self.config.options.secondary_tiers))
        lane = dataclasses.replace(
            options.lane,
            max_queued_bytes=min(options.lane.max_queued_bytes, share),
            max_store_bytes_in_flight=min(options.lane.max_store_bytes_in_flight, share),
        )
        return TierLane(tier, lane, self._row)

    def _row(self, group: int, slot: SlotId) -> memoryview:
        assert self._region is not None
        return memoryview(self._region.rows(group)[slot])
