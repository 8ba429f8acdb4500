"""The tests that every copier passes. Needs pytest or anything else that calls `test_…` methods.

    class TestMyCopier(CopierTests):
        def make_copier(self, groups):
            return MyCopier(groups)

The pages are numpy arrays; a copier for another kind of device moves them there and back in `make_copier`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvoffload.config.pages import Arrangement, AttentionPage, HeadOrder, LatentPage, LayerPage
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.direct import DirectLayout
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.messages import NO_SLOT, CopyJob, GroupCopies, JobOutcome
from kvoffload.testing.layout_engine import GARBAGE, LayoutEngine, position_bytes
from kvoffload.types import Direction, JobId, RequestId
from kvoffload.worker.copier import Copier
from kvoffload.worker.pages import ByteArray, GroupPages, bind_group

Entry = tuple[int, int, int]
"""Block, slot, position."""


@dataclass(frozen=True, slots=True)
class PageGeometry:
    """One group on one worker, and its rows in the host region."""

    blocks_per_chunk: int = 2
    world_size: int = 2
    rank: int = 1
    num_blocks: int = 12
    num_slots: int = 5
    page_bytes: tuple[int, ...] = (24, 8)
    """Of every layer."""
    block_gap_bytes: int = 0
    """Bytes between two blocks of a layer that belong to somebody else."""
    row_pad_bytes: int = 16


class Group:
    """Device and host memory of one group, filled with random bytes."""

    def __init__(self, geometry: PageGeometry, seed: int) -> None:
        bytes_of = np.random.default_rng(seed)
        self.geometry = geometry
        self.layout = DirectLayout(geometry.blocks_per_chunk, geometry.world_size, sum(geometry.page_bytes))
        self.storages = tuple(
            bytes_of.integers(0, 256, (geometry.num_blocks, page + geometry.block_gap_bytes), dtype=np.uint8)
            for page in geometry.page_bytes
        )
        self.rows = bytes_of.integers(
            0, 256, (geometry.num_slots, self.layout.row_bytes + geometry.row_pad_bytes), dtype=np.uint8
        )

    def bind(self) -> GroupPages:
        """What a copier gets."""
        pages = [
            storage[:, :page] for storage, page in zip(self.storages, self.geometry.page_bytes, strict=True)
        ]
        return bind_group(self.layout, self.geometry.rank, pages, self.rows)

    def expect(self, entries: Iterable[Entry], direction: Direction) -> tuple[list[ByteArray], ByteArray]:
        """Storages and rows as they must be afterwards: byte by byte, from the definition of the layout."""
        storages, rows = [storage.copy() for storage in self.storages], self.rows.copy()
        for block, slot, position in entries:
            first = self.geometry.rank * sum(self.geometry.page_bytes) * self.geometry.blocks_per_chunk
            for storage, page in zip(storages, self.geometry.page_bytes, strict=True):
                place = slice(first + position * page, first + (position + 1) * page)
                if direction is Direction.STORE:
                    rows[slot, place] = storage[block, :page]
                else:
                    storage[block, :page] = rows[slot, place]
                first += page * self.geometry.blocks_per_chunk
        return storages, rows


def job_of(direction: Direction, *parts: Sequence[Entry]) -> CopyJob:
    """A job with one part per group, in the order of the groups."""
    copies = []
    for group, entries in enumerate(parts):
        table = np.array(entries, dtype=np.int64).reshape(-1, 3)
        copies.append(GroupCopies(group, table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()))
    return CopyJob(JobId(1), RequestId("request"), direction, tuple(copies))


class CopierTests(ABC):
    """Subclass it, give `make_copier`, and run it."""

    seeds: Iterable[int] = range(60)
    """Random geometries; a failure names its seed, and `seeds = (that,)` replays it."""

    @abstractmethod
    def make_copier(self, groups: Sequence[GroupPages]) -> Copier:
        """A copier for these pages."""

    def copy(self, groups: Sequence[Group], job: CopyJob) -> JobOutcome:
        """Carry out a job; `make_copier` may be overridden, and this too if pages must be fetched back."""
        return self.make_copier([group.bind() for group in groups]).copy(job)

    def test_any_copy_moves_exactly_its_bytes(self) -> None:
        """Random geometries and jobs: every byte of both sides is as the layout says, the rest is untouched."""
        for seed in self.seeds:
            rng = random.Random(seed)  # noqa: S311
            direction = rng.choice(tuple(Direction))
            groups = [Group(_random_geometry(rng), seed + i) for i in range(rng.randint(1, 2))]
            parts = [_random_entries(rng, group.geometry) for group in groups]
            expected = [g.expect(part, direction) for g, part in zip(groups, parts, strict=True)]
            outcome = self.copy(groups, job_of(direction, *parts))
            moved = sum(len(part) * sum(g.geometry.page_bytes) for g, part in zip(groups, parts, strict=True))
            assert outcome.failed == frozenset(), f"seed {seed}: {outcome}"
            assert (outcome.workers, outcome.copied_bytes) == (1, moved), (
                f"seed {seed}: {outcome}, not {moved}"
            )
            for group, (storages, rows) in zip(groups, expected, strict=True):
                _assert_memory(group, storages, rows, f"seed {seed}, {group.geometry}, {direction}, {parts}")

    def test_what_was_stored_comes_back_into_other_blocks(self) -> None:
        """Store from some blocks, load into others: bit by bit the same."""
        group = Group(PageGeometry(), seed=1)
        before = [storage.copy() for storage in group.storages]
        self.copy([group], job_of(Direction.STORE, [(1, 3, 0), (2, 3, 1), (7, 0, 0), (5, 0, 1)]))
        self.copy([group], job_of(Direction.LOAD, [(8, 3, 0), (9, 3, 1), (0, 0, 0), (4, 0, 1)]))
        for storage, old in zip(group.storages, before, strict=True):
            np.testing.assert_array_equal(storage[[8, 9, 0, 4]], old[[1, 2, 7, 5]])

    def test_blocks_with_foreign_bytes_between_them_are_left_in_peace(self) -> None:
        """A page may be smaller than the distance between two blocks."""
        for direction in Direction:
            group = Group(PageGeometry(block_gap_bytes=5), seed=2)
            entries = [(3, 1, 0), (4, 1, 1), (6, 2, 0)]
            storages, rows = group.expect(entries, direction)
            self.copy([group], job_of(direction, entries))
            _assert_memory(group, storages, rows, direction)

    def test_chunks_without_a_slot_are_left_out(self) -> None:
        """NO_SLOT copies nothing and is no failure of this worker: the manager knows."""
        for direction in Direction:
            group = Group(PageGeometry(), seed=3)
            storages, rows = group.expect([(1, 2, 0)], direction)
            outcome = self.copy([group], job_of(direction, [(1, 2, 0), (2, NO_SLOT, 1), (3, NO_SLOT, 0)]))
            _assert_memory(group, storages, rows, direction)
            assert outcome.failed == frozenset()
            assert outcome.copied_bytes == sum(group.geometry.page_bytes)

    def test_a_chunk_outside_of_memory_fails_alone_and_touches_nothing(self) -> None:
        """Neighbours of a bad block or slot are copied, and the bad one damages nobody."""
        for per_chunk in (1, 2):
            geometry = PageGeometry(blocks_per_chunk=per_chunk)
            last = geometry.num_slots - 1
            for bad in (
                (geometry.num_blocks, 2, 0),
                (-1, 2, 0),
                (3, geometry.num_slots, 0),
                (3, -2, 0),
                (3, 2, per_chunk),
                (3, 2, -1),
            ):
                for direction in Direction:
                    group = Group(geometry, seed=4)
                    good = [(block, slot, 0) for block, slot in ((2, 1), (4, 3), (5, last))]
                    storages, rows = group.expect(good, direction)
                    outcome = self.copy([group], job_of(direction, [good[0], bad, *good[1:]]))
                    assert outcome.failed == {(0, bad[1])}, (bad, direction, outcome)
                    _assert_memory(group, storages, rows, (bad, direction))

    def test_a_run_that_leaves_memory_fails_only_where_it_does(self) -> None:
        """Blocks and slots that follow each other up to the end of memory and beyond."""
        geometry = PageGeometry(blocks_per_chunk=1, num_blocks=6, num_slots=9)
        for direction in Direction:
            group = Group(geometry, seed=5)
            run = [(block, block, 0) for block in range(3, 9)]
            storages, rows = group.expect(run[:3], direction)
            outcome = self.copy([group], job_of(direction, run))
            assert outcome.failed == {(0, 6), (0, 7), (0, 8)}, outcome
            _assert_memory(group, storages, rows, direction)

    def test_a_failed_chunk_of_one_group_is_none_of_the_other(self) -> None:
        """Slots are numbered per group: failures carry the group."""
        groups = [Group(PageGeometry(), seed=6), Group(PageGeometry(rank=0), seed=7)]
        outcome = self.copy(groups, job_of(Direction.STORE, [(0, 2, 0)], [(99, 2, 0)]))
        assert outcome.failed == {(1, 2)}

    def test_ranks_fill_and_read_canonical_rows_together(self) -> None:
        """Views of several dimensions, and bytes that ranks hold alike: each is stored once, by whose turn it is."""
        pages: tuple[LayerPage, ...] = (
            AttentionPage(2, (6, 6), 4, HeadOrder.NHD),
            AttentionPage(2, (6, 2), 4, arrangement=Arrangement.SPLIT),
            LatentPage((10,), 4),
        )
        layers = tuple(CanonicalLayer(f"layer {i}", page) for i, page in enumerate(pages))
        for per_chunk in (1, 2):
            layout = CanonicalLayout(layers, per_chunk, ParallelSizes(tp=4))
            chunks = 6 // per_chunk
            truth = position_bytes(layout, 6)
            entries = [(block, block // per_chunk + 1, block % per_chunk) for block in range(6)]
            rows = np.zeros((chunks + 2, layout.row_bytes + 5), np.uint8)
            writer = LayoutEngine(layout, truth, 6, make_copier=self.make_copier)
            outcomes = writer.copy(Direction.STORE, entries, rows)
            parts = [layer.reshape(chunks, -1) for layer in truth]
            right = np.zeros_like(rows)
            right[1:-1, : layout.row_bytes] = np.concatenate(parts, axis=1)
            np.testing.assert_array_equal(rows, right)
            assert sum(outcome.copied_bytes for outcome in outcomes) == chunks * layout.row_bytes
            reader = LayoutEngine(layout, None, 6, pad_bytes=3, make_copier=self.make_copier)
            reader.copy(Direction.LOAD, entries, rows)
            assert reader.first_difference(truth) is None
            assert all((found[:, -3:] == GARBAGE).all() for rank in reader.device for found in rank)


def _random_geometry(rng: random.Random) -> PageGeometry:
    world_size = rng.randint(1, 3)
    return PageGeometry(
        blocks_per_chunk=rng.randint(1, 4),
        world_size=world_size,
        rank=rng.randrange(world_size),
        num_blocks=rng.randint(1, 16),
        num_slots=rng.randint(1, 8),
        page_bytes=tuple(rng.choice((1, 3, 8, 32, 100)) for _ in range(rng.randint(1, 4))),
        block_gap_bytes=rng.choice((0, 0, 7)),
        row_pad_bytes=rng.choice((0, 16)),
    )


def _random_entries(rng: random.Random, geometry: PageGeometry) -> list[Entry]:
    """Every block and every place at most once, often in rows of neighbours."""
    places = [
        (slot, position)
        for slot in range(geometry.num_slots)
        for position in range(geometry.blocks_per_chunk)
    ]
    blocks = list(range(geometry.num_blocks))
    if rng.random() < 0.5:
        rng.shuffle(places)
        rng.shuffle(blocks)
    count = rng.randint(1, min(len(places), len(blocks)))
    first_block, first_place = rng.randint(0, len(blocks) - count), rng.randint(0, len(places) - count)
    return [(blocks[first_block + i], *places[first_place + i]) for i in range(count)]


def _assert_memory(group: Group, storages: Sequence[ByteArray], rows: ByteArray, where: object) -> None:
    for layer, (found, right) in enumerate(zip(group.storages, storages, strict=True)):
        np.testing.assert_array_equal(found, right, err_msg=f"device, layer {layer}: {where}")
    np.testing.assert_array_equal(group.rows, rows, err_msg=f"host: {where}")
