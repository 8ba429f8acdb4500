"""What a manager is made from: the engine's geometry, the user's wishes, and the tiers below the host. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvoffload.manager.lane import TierLane
from kvoffload.manager.request import GroupGeometry
from kvoffload.manager.staging import StagingConfig
from kvoffload.policies.admission import SizeLimit


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """What the manager must know of the engine and of the user's wishes."""

    groups: tuple[GroupGeometry, ...]
    world_size: int
    offload_prompt_only: bool
    wait_for_loads: bool
    """Two requests that want the same chunk share one load: right where the device has a prefix cache."""
    pending_timeout_s: float
    transfer_timeout_s: float
    null_block_id: int = 0
    """The engine's block that stands for "no block"."""
    size_limit: SizeLimit = field(default_factory=SizeLimit)
    """How much of a request may be stored, by its length."""
    boundary_unit_tokens: int = 1
    """Where the engine's own hits end, beside the edges of the groups here: a load ends there, too."""


@dataclass(frozen=True, slots=True)
class Below:
    """The tiers below the host."""

    lanes: tuple[TierLane, ...] = ()
    """The fastest first."""
    config: StagingConfig = field(default_factory=StagingConfig)
    row_bytes: tuple[int, ...] = ()
    """Per group, the bytes of a row that a load moves: by them loads are sized, and their time is reckoned."""
