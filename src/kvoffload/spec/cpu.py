"""Host memory as the only tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvoffload.clock import Clock
from kvoffload.config.parse import WHERE
from kvoffload.config.schema import OffloadingConfig
from kvoffload.config.units import format_bytes
from kvoffload.errors import ConfigError, UnsupportedModelError
from kvoffload.keys.fingerprint import namespace_of
from kvoffload.layout import direct
from kvoffload.layout.canonical import CanonicalLayout, seen_fault, with_seen_order
from kvoffload.layout.certify import SeenTensor
from kvoffload.layout.layouts import GroupLayout, certification_report, layouts_of, way_out
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.manager import OffloadManager
from kvoffload.manager.request import GroupGeometry
from kvoffload.manager.retention import Shares
from kvoffload.manager.settings import Below, ManagerConfig
from kvoffload.memory.plan import plan_region
from kvoffload.memory.region_spec import RegionSpec
from kvoffload.memory.shared_region import SharedOffloadRegion
from kvoffload.metrics.recorder import Recorder
from kvoffload.policies.admission import SizeLimit, TouchFilter
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.spec.base import OffloadingSpec
from kvoffload.worker.copier import Copier
from kvoffload.worker.copier_cpu import CPUCopier
from kvoffload.worker.pages import ByteArray, GroupPages, bind_group
from kvoffload.worker.pages_canonical import bind_canonical
from kvoffload.worker.worker import OffloadWorker

_BOUNDARIES_PER_STATE = 4
"""Full attention leaves a chunk at every block's end, a recurrent state only where a step ended. So fewer rows do for
states; with one to 4 blocks neither they nor the chunks beside them are what is short in usual prompts."""


class CPUOffloadingSpec(OffloadingSpec):
    """One host tier in one region that all workers of the engine share, in the direct layout.

    The region is sized from the configuration alone, so every process computes the same plan.
    """

    has_secondary_tiers: ClassVar[bool] = False

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        _refuse_what_is_missing(config)
        if config.options.secondary_tiers and not self.has_secondary_tiers:
            raise ConfigError(
                f"{WHERE}: {config.options.spec_name} has no secondary_tiers; set spec_name to TieringOffloadingSpec"
            )
        self._policy_class = EVICTION_POLICIES.resolve(
            config.options.eviction_policy, config.options.cache_policy_module_path
        )
        self._layouts: tuple[GroupLayout, ...] = layouts_of(config)
        self._plan = plan_region(
            config.options.cpu_bytes_to_use,
            [layout.row_bytes for layout in self._layouts],
            tokens_per_row=[self._tokens_per_row(index) for index in range(len(config.groups))],
        )
        self._region: SharedOffloadRegion | None = None

    @property
    def region_spec(self) -> RegionSpec:
        """What every process of the engine must know to make or join the region."""
        return RegionSpec(
            engine_id=self.config.engine_id,
            plan=self._plan,
            world_size=self.config.parallel.world_size,
            timeout_s=self.config.options.join_timeout_s,
        )

    def make_manager(self, recorder: Recorder, clock: Clock) -> OffloadManager:
        """See OffloadingSpec."""
        return self._make_manager(recorder, clock, Below())

    def _make_manager(self, recorder: Recorder, clock: Clock, below: Below) -> OffloadManager:
        options = self.config.options
        tiers = [
            HostTier(
                area.rows,
                self._policy_class(area.rows),
                TouchFilter(options.store_threshold, options.max_tracker_size),
                Shares(kept=options.max_pinned_share, high=options.max_high_priority_share),
            )
            for area in self._plan.groups
        ]
        config = ManagerConfig(
            groups=tuple(
                GroupGeometry(
                    group_id=group.group_id,
                    tokens_per_block=group.tokens_per_block,
                    blocks_per_chunk=self.config.cache.blocks_per_chunk,
                    tokens_per_hash=self.config.cache.tokens_per_hash,
                    reach_tokens=group.reach_tokens,
                    is_state=group.is_state,
                    local_tokens=group.local_tokens,
                )
                for group in self.config.groups
            ),
            world_size=self.config.parallel.world_size,
            offload_prompt_only=options.offload_prompt_only,
            wait_for_loads=self.config.cache.prefix_caching,
            pending_timeout_s=options.pending_timeout_s,
            transfer_timeout_s=options.transfer_timeout_s,
            size_limit=SizeLimit(options.store_min_prompt_tokens, options.store_max_tokens),
            boundary_unit_tokens=self.config.cache.boundary_unit_tokens,
        )
        return OffloadManager(config, tiers, recorder, clock, below)

    def certify(self, seen: Sequence[Mapping[str, SeenTensor]]) -> None:
        """See OffloadingSpec. One rank alone cannot become opaque: the others write canonical rows into its region."""
        rank = self.config.parallel.rank
        checked: list[GroupLayout] = []
        for layout, tensors in zip(self._layouts, seen, strict=True):
            if not isinstance(layout, CanonicalLayout):
                checked.append(layout)
                continue
            fault = seen_fault(layout, rank, tensors)
            if fault is not None:
                raise UnsupportedModelError(
                    f"kvoffload: the engine's cache does not look as its configuration says ({fault}); "
                    f"{way_out(self.config)}"
                )
            checked.append(with_seen_order(layout, rank, tensors))
        self._layouts = tuple(checked)

    def make_worker(self, device_pages: Sequence[Sequence[ByteArray]]) -> OffloadWorker:
        """See OffloadingSpec."""
        parallel, options = self.config.parallel, self.config.options
        region = SharedOffloadRegion.open(self.region_spec, parallel.rank)
        self._region = region
        groups = [
            _bind(layout, parallel.rank, pages, region.rows(index))
            for index, (layout, pages) in enumerate(zip(self._layouts, device_pages, strict=True))
        ]
        region.populate_in_background()
        return OffloadWorker(self.make_copier(groups), flush_timeout_s=options.transfer_timeout_s)

    def make_copier(self, groups: Sequence[GroupPages]) -> Copier:
        """The copier of this worker: the place to override for another kind of device."""
        return CPUCopier(groups)

    def _tokens_per_row(self, index: int) -> int:
        """How many tokens of prompts one row of a group serves, on average."""
        density = _BOUNDARIES_PER_STATE if self.config.groups[index].is_state else 1
        return self.config.tokens_per_chunk(index) * density

    def describe(self) -> str:
        """See OffloadingSpec."""
        chunks = " + ".join(
            f"{area.rows} chunks of {self.config.tokens_per_chunk(index)} tokens"
            for index, area in enumerate(self._plan.groups)
        )
        tokens = min(area.rows * self._tokens_per_row(i) for i, area in enumerate(self._plan.groups))
        return (
            f"host tier on: {format_bytes(self._plan.total_bytes)} for all {self.config.parallel.world_size} worker(s), "
            f"{chunks} = {tokens} tokens; policy {self.config.options.eviction_policy}; "
            f"{'prompts only' if self.config.options.offload_prompt_only else 'prompts and answers'}; "
            f"{self._layout_text()}; namespace {namespace_of(self.config).directory_name}"
        )

    def _layout_text(self) -> str:
        if self.config.layout.family == direct.FAMILY:
            return "direct layout: chunks are read under the same parallel layout only"
        if self.config.parallel.is_parallelism_agnostic:
            return "canonical layout: chunks are readable under any parallel layout"
        return "canonical layout with opaque layers: chunks are read under the same parallel layout only"

    def report(self) -> tuple[str, ...]:
        """See OffloadingSpec."""
        return () if self.config.layout.family == direct.FAMILY else certification_report(self.config)

    def close(self) -> None:
        """See OffloadingSpec."""
        if self._region is not None:
            self._region.close()
            self._region = None


def _bind(layout: GroupLayout, rank: int, pages: Sequence[ByteArray], rows: ByteArray) -> GroupPages:
    if isinstance(layout, CanonicalLayout):
        return bind_canonical(layout, rank, pages, rows)
    return bind_group(layout, rank, pages, rows)


def _refuse_what_is_missing(config: OffloadingConfig) -> None:
    if config.options.self_describing_kv_events:
        raise ConfigError(
            f"{WHERE}: self_describing_kv_events is not available in this version; leave it out"
        )
