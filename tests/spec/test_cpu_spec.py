"""The CPU spec: one plan for all processes, exact sizes, refusals; and the whole way through a real region."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.clock import ManualClock
from kvoffload.config.options import OffloadingOptions
from kvoffload.config.pages import LatentPage, LayerFacts
from kvoffload.config.schema import LayoutIdentity, OffloadingConfig
from kvoffload.errors import ConfigError, RegionSizeError, UnsupportedModelError
from kvoffload.keys.fingerprint import namespace_of
from kvoffload.layout import canonical
from kvoffload.layout.certify import SeenTensor
from kvoffload.manager.request import RequestInfo
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.messages import WorkerReport
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.spec.cpu import CPUOffloadingSpec
from kvoffload.testing.configs import example_config, example_group
from kvoffload.types import BlockId, RequestId
from kvoffload.worker.worker import OffloadWorker, report_of

LONG_S = 30.0


def options_of(**changes: Any) -> OffloadingOptions:
    return dataclasses.replace(OffloadingOptions(cpu_bytes_to_use=2**20, join_timeout_s=LONG_S), **changes)


def of_rank(config: OffloadingConfig, rank: int) -> OffloadingConfig:
    return dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, rank=rank))


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_all_ranks_and_the_scheduler_compute_the_same_region(world_size: int, num_groups: int) -> None:
    config = example_config(world_size=world_size, num_groups=num_groups)
    specs = [CPUOffloadingSpec(of_rank(config, rank)).region_spec for rank in range(world_size)]
    scheduler = CPUOffloadingSpec(of_rank(config, 0))
    assert all(spec == scheduler.region_spec for spec in specs)
    recorder = Recorder()
    scheduler.make_manager(recorder, ManualClock())
    rows = sum(area.rows for area in scheduler.region_spec.plan.groups)
    assert recorder.value(m.CAPACITY_CHUNKS) == rows


def test_the_shares_that_requests_may_take_are_those_of_the_options() -> None:
    options = options_of(max_pinned_share=0.25, max_high_priority_share=0.75)
    manager = CPUOffloadingSpec(example_config(options=options)).make_manager(Recorder(), ManualClock())
    (tier,) = manager._tiers
    assert tier._retention.max_kept == tier.num_slots // 4 > 0
    assert tier._policy._max_high == tier.num_slots * 3 // 4


@settings(max_examples=60, deadline=None)
@given(st.integers(64 * 2**10, 4 * 2**20), st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(1, 2))
def test_the_region_is_at_most_one_row_below_the_budget_whatever_the_parallel_size(
    budget: int, world_size: int, blocks_per_chunk: int, num_groups: int
) -> None:
    config = example_config(
        options=options_of(cpu_bytes_to_use=budget), world_size=world_size, num_groups=num_groups
    )
    config = dataclasses.replace(
        config, cache=dataclasses.replace(config.cache, blocks_per_chunk=blocks_per_chunk)
    )
    row_bytes = 4096 * world_size * blocks_per_chunk
    try:
        plan = CPUOffloadingSpec(config).region_spec.plan
    except RegionSizeError:
        assert budget < row_bytes * num_groups
        return
    assert budget - row_bytes < plan.total_bytes <= budget
    assert all(area.row_stride_bytes >= row_bytes for area in plan.groups)


def test_a_budget_below_one_row_is_refused_with_both_sizes() -> None:
    config = example_config(options=options_of(cpu_bytes_to_use=4095))
    with pytest.raises(RegionSizeError, match=r"needed 4.00 KiB .*available .*4095 bytes.*cpu_bytes_to_use"):
        CPUOffloadingSpec(config)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"self_describing_kv_events": True}, "self_describing_kv_events"),
        ({"secondary_tiers": ("anything",)}, "TieringOffloadingSpec"),
        ({"eviction_policy": "no-such-policy"}, "valid: .*lru"),
        ({"eviction_policy": "X", "cache_policy_module_path": "no_such_module"}, "cannot be loaded"),
    ],
)
def test_what_this_spec_does_not_have_is_refused_and_not_ignored(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        CPUOffloadingSpec(example_config(options=options_of(**options)))


def test_the_description_says_what_is_on_and_how_big() -> None:
    config = example_config(options=options_of(cpu_bytes_to_use=10 * 8192 + 5), world_size=2)
    text = CPUOffloadingSpec(config).describe()
    for part in ("81920 bytes", "2 worker(s)", "10 chunks of 16 tokens", "160 tokens", "lru", "prompts only"):
        assert part in text
    assert namespace_of(config).directory_name in text
    assert "\n" not in text


def test_options_reach_the_manager() -> None:
    options = options_of(
        store_threshold=2,
        store_min_prompt_tokens=50,
        store_max_tokens=70,
        offload_prompt_only=False,
        pending_timeout_s=3.0,
        transfer_timeout_s=9.0,
    )
    config = example_config(options=options, num_groups=2)
    config = dataclasses.replace(config, cache=dataclasses.replace(config.cache, prefix_caching=False))
    manager = CPUOffloadingSpec(config).make_manager(Recorder(), ManualClock())
    seen = manager._config
    assert (seen.offload_prompt_only, seen.wait_for_loads) == (False, False)
    assert (seen.pending_timeout_s, seen.transfer_timeout_s) == (3.0, 9.0)
    assert [geometry.group_id for geometry in seen.groups] == [0, 1]
    assert [seen.size_limit.max_tokens(length) for length in (49, 50)] == [0, 70]
    assert all(tier._admission._threshold == 2 for tier in manager._tiers)


def test_closing_without_a_region_and_closing_twice_are_fine() -> None:
    spec = CPUOffloadingSpec(example_config())
    spec.close()
    spec.close()


# -- the whole way -----------------------------------------------------------------------------------------------


class Engine:
    """Ranks as threads of one process, each with its own device pages, over one real region."""

    def __init__(self, world_size: int) -> None:
        self.config = example_config(
            world_size=world_size,
            engine_id=f"test-{uuid.uuid4()}",
            options=options_of(),
            groups=(example_group(0, worker_kv_bytes_per_block=96),),
        )
        self.specs = [CPUOffloadingSpec(of_rank(self.config, rank)) for rank in range(world_size)]
        bytes_of = np.random.default_rng(world_size)
        self.pages = [
            [bytes_of.integers(0, 256, (8, size), dtype=np.uint8) for size in (64, 32)] for _ in self.specs
        ]
        with ThreadPoolExecutor(world_size) as pool:
            self.workers: Sequence[OffloadWorker] = list(
                pool.map(lambda spec, pages: spec.make_worker([pages]), self.specs, self.pages)
            )
        self.recorder = Recorder()
        self.manager = CPUOffloadingSpec(of_rank(self.config, 0)).make_manager(self.recorder, ManualClock())

    def step(self, *scheduled: ScheduledRequest) -> None:
        """A step and all of its copies."""
        message = self.manager.step(StepInput(scheduled))
        report = WorkerReport()
        for worker in self.workers:
            worker.submit([*message.loads, *message.stores])
            worker.flush([job.job_id for job in (*message.loads, *message.stores)])
            report = report.merge(report_of(worker.poll()))
        self.manager.report(report)
        self.manager.check()

    def close(self) -> None:
        for worker, spec in zip(self.workers, self.specs, strict=True):
            worker.shutdown()
            spec.close()
            spec.close()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_prompt_goes_down_and_comes_back_bit_by_bit_through_a_real_region(world_size: int) -> None:
    engine = Engine(world_size)
    try:
        hashes = [b"%08d" % number for number in range(3)]
        first, second = RequestId("first"), RequestId("second")
        engine.manager.add_request(RequestInfo(first, 48, hashes))
        engine.step(ScheduledRequest(first, ([BlockId(b) for b in (1, 2, 3)],), True, 0, 48))
        engine.manager.add_request(RequestInfo(second, 48, hashes))
        assert engine.manager.match(second, 0) == 48
        engine.manager.allocated(second, [[BlockId(b) for b in (6, 4, 5)]], 0, 48)
        before = [[page.copy() for page in pages] for pages in engine.pages]
        engine.step()
        for pages, old in zip(engine.pages, before, strict=True):
            for page, was in zip(pages, old, strict=True):
                np.testing.assert_array_equal(page[[6, 4, 5]], was[[1, 2, 3]])
                np.testing.assert_array_equal(page[[0, 1, 2, 3, 7]], was[[0, 1, 2, 3, 7]])
        assert engine.recorder.value(m.LOADED_BYTES) == 3 * 96 * world_size
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("is_replicated", "remedy"),
    [(True, "start without the connector"), (False, "leave canonical_layout out")],
)
def test_a_cache_that_looks_otherwise_is_refused_with_a_remedy_that_helps(
    is_replicated: bool, remedy: str
) -> None:
    # A latent model is canonical without being asked: there is no option to leave out.
    layers = tuple(LayerFacts(name, LatentPage((64,), 16), 1024) for name in ("layer.0", "layer.1"))
    layout = LayoutIdentity(canonical.FAMILY, canonical.FORMAT_VERSION, "any", "example-engine")
    config = example_config(layout=layout, canonical_layout=True, replicated_layout=is_replicated)
    config = dataclasses.replace(config, groups=(example_group(0, layers=layers),))
    spec = CPUOffloadingSpec(config)
    seen = {"layer.0": SeenTensor((9, 16, 65), (1040, 65, 1), 1, "BNC")}
    with pytest.raises(UnsupportedModelError, match=remedy):
        spec.certify([seen])
