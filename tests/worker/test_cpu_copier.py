"""The CPU copier against the shipped suite, and against Hypothesis for any geometry."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.testing.copier_tests import CopierTests, Group, PageGeometry, job_of
from kvoffload.types import Direction
from kvoffload.worker.copier import Copier
from kvoffload.worker.copier_cpu import CPUCopier
from kvoffload.worker.pages import GroupPages


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class TestCPUCopier(CopierTests):
    def make_copier(self, groups: Sequence[GroupPages]) -> Copier:
        return CPUCopier(groups)


geometries = st.builds(
    PageGeometry,
    blocks_per_chunk=st.integers(1, 4),
    world_size=st.just(3),
    rank=st.integers(0, 2),
    num_blocks=st.integers(8, 20),
    num_slots=st.integers(4, 8),
    page_bytes=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple),
    block_gap_bytes=st.integers(0, 9),
    row_pad_bytes=st.integers(0, 9),
)


@settings(max_examples=100, deadline=None)
@given(geometries, st.data())
def test_a_round_trip_through_the_host_is_bit_exact(geometry: PageGeometry, data: st.DataObject) -> None:
    group = Group(geometry, seed=0)
    copier = CPUCopier([group.bind()])
    per_chunk = geometry.blocks_per_chunk
    chunks = geometry.num_blocks // per_chunk // 2
    slots = data.draw(st.permutations(range(geometry.num_slots)))[: max(1, min(chunks, geometry.num_slots))]
    blocks = data.draw(st.permutations(range(geometry.num_blocks)))
    sources, targets = (blocks[i::2][: len(slots) * per_chunk] for i in (0, 1))
    places = [(slot, position) for slot in slots for position in range(per_chunk)][
        : min(len(sources), len(targets))
    ]
    before = [storage.copy() for storage in group.storages]
    foreign = group.rows.copy()
    copier.copy(job_of(Direction.STORE, [(b, *p) for b, p in zip(sources, places, strict=False)]))
    for storage in group.storages:
        storage[list(sources), : storage.shape[1] - geometry.block_gap_bytes] = (
            0  # the engine reuses its blocks
        )
    copier.copy(job_of(Direction.LOAD, [(b, *p) for b, p in zip(targets, places, strict=False)]))
    used = len(places)
    for storage, old, page in zip(group.storages, before, geometry.page_bytes, strict=True):
        np.testing.assert_array_equal(storage[list(targets[:used]), :page], old[list(sources[:used]), :page])
        np.testing.assert_array_equal(storage[:, page:], old[:, page:])
    part = geometry.rank * group.layout.worker_part_bytes
    np.testing.assert_array_equal(group.rows[:, :part], foreign[:, :part])
    end = part + group.layout.worker_part_bytes
    np.testing.assert_array_equal(group.rows[:, end:], foreign[:, end:])


def test_ranks_that_share_a_row_do_not_disturb_each_other() -> None:
    groups = [Group(PageGeometry(rank=rank), seed=rank) for rank in (0, 1)]
    groups[1].rows = groups[0].rows
    for group in groups:
        CPUCopier([group.bind()]).copy(job_of(Direction.STORE, [(1, 0, 0), (2, 0, 1)]))
    for group in groups:
        copier = CPUCopier([group.bind()])
        copier.copy(job_of(Direction.LOAD, [(5, 0, 0), (6, 0, 1)]))
        for storage in group.storages:
            np.testing.assert_array_equal(storage[[5, 6]], storage[[1, 2]])
