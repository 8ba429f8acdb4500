"""Puts the production parts of one engine together: host tiers, lanes, staging, manager. No faults here."""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload.config.options import LaneOptions
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.lane import TierLane
from kvoffload.manager.manager import OffloadManager
from kvoffload.manager.request import GroupGeometry
from kvoffload.manager.settings import Below, ManagerConfig
from kvoffload.manager.staging import LoadPolicy, StagingConfig
from kvoffload.metrics.recorder import Recorder
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.lru import LRUPolicy
from kvoffload.sim.memory import Memory
from kvoffload.sim.setups import Setup
from kvoffload.sim.world import World
from kvoffload.tiers.base import Tier
from kvoffload.types import SlotId

PENDING_TIMEOUT_S = 5.0
TRANSFER_TIMEOUT_S = 60.0
LANE_DEADLINE_S = 10.0
RETRY_AFTER_S = 5.0
PROMOTION_DEADLINE_S = 4.0
HOLD_S = 8.0
_QUEUED_ROWS = 12
_BATCH_ROWS = 3
_ROWS_IN_FLIGHT = 8


def make_hosts(setup: Setup) -> list[HostTier]:
    """The host tier of each group."""
    return [
        HostTier(setup.num_slots, LRUPolicy(setup.num_slots), TouchFilter(setup.store_threshold, 64))
        for _ in setup.tokens_per_block
    ]


def make_manager(
    world: World, memory: Memory, hosts: Sequence[HostTier], below: Sequence[Tier], recorder: Recorder
) -> OffloadManager:
    """A manager as an engine would have it, with small bounds, so that all of them are met."""
    return OffloadManager(_manager_config(world.setup), hosts, recorder, world.clock, _below(memory, below))


def _below(memory: Memory, tiers: Sequence[Tier]) -> Below:
    row_bytes = tuple(rows.shape[1] for rows in memory.rows)
    widest = max(row_bytes)
    lane = LaneOptions(
        deadline_s=LANE_DEADLINE_S,
        retry_after_s=RETRY_AFTER_S,
        max_queued_bytes=_QUEUED_ROWS * widest,
        max_store_bytes_in_flight=_ROWS_IN_FLIGHT * widest,
        batch_bytes=_BATCH_ROWS * widest,
    )

    def row(group: int, slot: SlotId) -> memoryview:
        return memoryview(memory.rows[group][slot])

    return Below(
        lanes=tuple(TierLane(tier, lane, row) for tier in tiers),
        config=StagingConfig(LoadPolicy.ALWAYS, deadline_s=PROMOTION_DEADLINE_S, hold_s=HOLD_S),
        row_bytes=row_bytes,
    )


def _manager_config(setup: Setup) -> ManagerConfig:
    return ManagerConfig(
        groups=tuple(
            GroupGeometry(
                setup.group_ids[index],
                tokens,
                setup.blocks_per_chunk,
                setup.tokens_per_hash,
                setup.reach_of(index),
                setup.is_state(index),
                setup.local_of(index),
            )
            for index, tokens in enumerate(setup.tokens_per_block)
        ),
        world_size=setup.world_size,
        offload_prompt_only=setup.prompt_only,
        wait_for_loads=setup.prefix_caching,
        pending_timeout_s=PENDING_TIMEOUT_S,
        transfer_timeout_s=TRANSFER_TIMEOUT_S,
        boundary_unit_tokens=setup.unit_tokens,
    )
