"""The mappings of single pages: worked examples, and the proof that finds any change of any run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from page_strategies import layers_and_sizes, thorough

from kvoffload.config.pages import (
    Arrangement,
    AttentionPage,
    HeadOrder,
    LatentPage,
    LayerPage,
    OpaquePage,
    Segment,
    StatePage,
    StateTensor,
)
from kvoffload.layout.election import elected, first_elected_step
from kvoffload.layout.geometry import ParallelSizes, UnmappableError, places, unit_share
from kvoffload.layout.mapping import CanonicalPageMapping, map_page
from kvoffload.layout.reference import reference_page
from kvoffload.layout.runs import Dim, PageRun, factor, merged_ranges
from kvoffload.layout.verify import derived_page_fault, page_fault

HEADS, TOKENS, SIZE = 4, 8, 3


def canonical_numbers() -> np.ndarray:
    """K and V of every head and token, numbered in canonical order: [head][token][K|V]."""
    return np.arange(HEADS * TOKENS * 2 * SIZE).reshape(HEADS, TOKENS, 2, SIZE)


def bytes_of(page: LayerPage, sizes: ParallelSizes, rank: int) -> np.ndarray:
    """The canonical byte of every byte of a rank's page, from the runs."""
    mapping = map_page(page, sizes, rank)
    found = np.full(mapping.page_bytes, -1)
    for run in mapping.runs:
        inner = np.arange(run.fragment_bytes)
        found[run.page_starts()[:, None] + inner] = run.canonical_starts()[:, None] + inner
    return found


# Worked examples, independent of reference.py ------------------------------------------------------------------------


def test_heads_outside_and_packed_is_the_canonical_order_itself() -> None:
    page = AttentionPage(HEADS, (SIZE, SIZE), TOKENS)
    (run,) = map_page(page, ParallelSizes(tp=2), 1).runs
    half = HEADS * TOKENS * 2 * SIZE // 2
    assert run == PageRun(0, half, half)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_way_to_lay_out_heads_tokens_and_parts_maps_to_the_same_bytes(tp: int) -> None:
    for rank in range(tp):
        mine = canonical_numbers()[rank * HEADS // tp : (rank + 1) * HEADS // tp]
        for order, arrangement, axes in (
            (HeadOrder.HND, Arrangement.PACKED, (0, 1, 2, 3)),
            (HeadOrder.NHD, Arrangement.PACKED, (1, 0, 2, 3)),
            (HeadOrder.HND, Arrangement.SPLIT, (2, 0, 1, 3)),
            (HeadOrder.NHD, Arrangement.SPLIT, (2, 1, 0, 3)),
        ):
            page = AttentionPage(HEADS, (SIZE, SIZE), TOKENS, order, arrangement)
            found = bytes_of(page, ParallelSizes(tp=tp), rank)
            np.testing.assert_array_equal(found, mine.transpose(axes).reshape(-1))


def test_heads_are_held_by_several_ranks_if_there_are_more_ranks_than_heads() -> None:
    page, sizes = AttentionPage(2, (SIZE, SIZE), TOKENS), ParallelSizes(tp=8)
    runs = [map_page(page, sizes, rank).runs[0] for rank in range(8)]
    assert [run.canonical_offset for run in runs] == [0] * 4 + [TOKENS * 2 * SIZE] * 4
    assert [(run.writers, run.writer_index) for run in runs] == [(4, index) for index in range(4)] * 2


def test_context_parallel_ranks_hold_interleaved_tokens() -> None:
    sizes = ParallelSizes(tp=4, dcp=2, interleave_tokens=2)
    page = LatentPage((5,), 4)
    for rank in range(4):
        tokens = [0, 1, 4, 5] if rank % 2 == 0 else [2, 3, 6, 7]
        right = np.arange(8 * 5).reshape(8, 5)[tokens].reshape(-1)
        np.testing.assert_array_equal(bytes_of(page, sizes, rank), right)
        assert map_page(page, sizes, rank).runs[0].writers == 2


def test_layers_whose_tokens_are_not_spread_are_replicas_under_context_parallelism() -> None:
    page = replace(LatentPage((5,), 4), token_sharded=False)
    mapping = map_page(page, ParallelSizes(tp=4, dcp=2), 3)
    assert mapping.is_replica
    assert mapping.runs == (PageRun(0, 0, 20, (), 4, 3),)


def test_the_convolution_state_is_split_segment_by_segment() -> None:
    """Qwen3-Next, 4 heads: states (3, 512) bfloat16 [query 128 | key 128 | value 256] and (4, 64, 64) float32."""
    page = StatePage(
        (
            StateTensor((3, 512), 2, 1, (Segment(2, 64), Segment(2, 64), Segment(4, 64))),
            StateTensor((4, 64, 64), 4, 0, (Segment(4),)),
        )
    )
    sizes = ParallelSizes(tp=2)
    whole = np.arange(3 * 512 * 2 + 4 * 64 * 64 * 4)
    assert map_page(page, ParallelSizes(), 0).runs == (PageRun(0, 0, whole.size),)
    assert whole.size == 68_608
    for rank in range(2):
        conv = whole[: 3 * 512 * 2].reshape(3, 512, 2)
        channels = [*range(rank * 64, rank * 64 + 64), *range(128 + rank * 64, 192 + rank * 64)]
        channels += range(256 + rank * 128, 384 + rank * 128)
        ssm = whole[3 * 512 * 2 :].reshape(4, -1)[2 * rank : 2 * rank + 2]
        right = np.concatenate((conv[:, channels].reshape(-1), ssm.reshape(-1)))
        np.testing.assert_array_equal(bytes_of(page, sizes, rank), right)


def test_groups_of_a_state_that_are_fewer_than_the_ranks_have_several_writers_and_the_heads_one() -> None:
    page = StatePage((StateTensor((2, 9), 1, 1, (Segment(8), Segment(1))),))
    runs = map_page(page, ParallelSizes(tp=4), 2).runs
    assert [(run.writers, run.writer_index, run.num_bytes) for run in runs] == [(1, 0, 4), (4, 2, 2)]


def test_a_block_split_into_kernel_blocks_is_one_page() -> None:
    page = AttentionPage(HEADS, (SIZE, SIZE), TOKENS, kernel_tokens=2)
    right = canonical_numbers().reshape(HEADS, 4, 2, 2 * SIZE).transpose(1, 0, 2, 3).reshape(-1)
    np.testing.assert_array_equal(bytes_of(page, ParallelSizes(), 0), right)


def test_extra_buffers_lie_behind_the_heads_and_are_held_by_all() -> None:
    page = AttentionPage(2, (1, 1), 4, extras=(3, 1))
    found = bytes_of(page, ParallelSizes(tp=2), 1)
    np.testing.assert_array_equal(found, [*range(8, 16), *range(16, 32)])


def test_prefill_context_ranks_hold_the_same_tokens_unless_they_are_told_to_spread_them() -> None:
    alike = ParallelSizes(tp=2, pcp=2)
    assert [place.token_shard for place in places(alike)] == [0] * 4
    spanned = ParallelSizes(tp=2, pcp=2, dcp=4)
    assert [place.token_shard for place in places(spanned)] == [0, 2, 1, 3]
    spread = ParallelSizes(tp=2, pcp=2, dcp=2, pcp_shards_tokens=True)
    assert [place.token_shard for place in places(spread)] == [0, 1, 2, 3]


# The proof ---------------------------------------------------------------------------------------------------------


@thorough(max_examples=60)
@given(layers_and_sizes())
def test_elected_writers_tile_the_canonical_page_and_runs_cover_each_ranks_page(group: tuple) -> None:
    layers, sizes = group
    for layer in layers:
        assert derived_page_fault(layer.page, sizes, layer.stage) is None


def _changed(run: PageRun, data: st.DataObject, length: int) -> PageRun:
    """The run with one field changed; the largest changes leave the page."""
    what = data.draw(
        st.sampled_from(
            ("page_offset", "canonical_offset", "fragment_bytes", "writers", "writer_index", "dims")
        )
    )
    delta = data.draw(st.sampled_from((-length, -1, 1, length)) | st.integers(-8, 8).filter(bool))
    if what != "dims":
        return replace(run, **{what: getattr(run, what) + delta})
    assume(run.dims)
    which = data.draw(st.integers(0, len(run.dims) - 1))
    field = data.draw(st.sampled_from(Dim._fields))
    dim = run.dims[which]
    value = getattr(dim, field) + delta
    assume(field != "size" or value >= 0)
    dims = list(run.dims)
    dims[which] = dim._replace(**{field: value})
    return replace(run, dims=tuple(dims))


@thorough(max_examples=150)
@given(layers_and_sizes(), st.data())
def test_a_mapping_with_one_run_changed_is_rejected(group: tuple, data: st.DataObject) -> None:
    layers, sizes = group
    page = data.draw(st.sampled_from(layers)).page
    mappings = {rank: map_page(page, sizes, rank) for rank in range(sizes.stage_size)}
    victim = data.draw(st.sampled_from(sorted(mappings)))
    runs = list(mappings[victim].runs)
    which = data.draw(st.integers(0, len(runs) - 1))
    changed = _changed(runs[which], data, mappings[victim].page_bytes)
    assume(changed.fragment_bytes > 0 and changed.writers > 0)
    runs[which] = changed
    mappings[victim] = replace(mappings[victim], runs=tuple(runs))
    assert page_fault(page, sizes, mappings) is not None


@thorough(max_examples=60)
@given(layers_and_sizes(), st.data())
def test_a_mapping_without_one_of_its_runs_or_with_one_twice_is_rejected(
    group: tuple, data: st.DataObject
) -> None:
    layers, sizes = group
    page = layers[0].page
    mappings = {rank: map_page(page, sizes, rank) for rank in range(sizes.stage_size)}
    victim = data.draw(st.sampled_from(sorted(mappings)))
    runs = mappings[victim].runs
    which = data.draw(st.integers(0, len(runs) - 1))
    times = data.draw(st.sampled_from((0, 2)))
    mappings[victim] = replace(
        mappings[victim], runs=(*runs[:which], *(runs[which],) * times, *runs[which + 1 :])
    )
    assert page_fault(page, sizes, mappings) is not None


def test_bytes_that_only_change_places_are_found() -> None:
    """Heads and tokens mixed up tile the page just as well."""
    page = AttentionPage(4, (2, 2), 4, HeadOrder.NHD)
    mapping = map_page(page, ParallelSizes(), 0)
    (run,) = mapping.runs
    heads, tokens = run.dims
    mixed = (heads._replace(page_stride=tokens.page_stride), tokens._replace(page_stride=heads.page_stride))
    wrong = replace(mapping, runs=(replace(run, dims=mixed),))
    assert "not what its run says" in (page_fault(page, ParallelSizes(), {0: wrong}) or "")


def test_a_rank_that_takes_another_ranks_turns_is_found() -> None:
    page, sizes = LatentPage((4,), 4), ParallelSizes(tp=2)
    same: dict[int, CanonicalPageMapping] = dict.fromkeys(range(2), map_page(page, sizes, 0))
    assert "do not tile" in (page_fault(page, sizes, same) or "")


def test_a_missing_rank_is_found() -> None:
    page, sizes = AttentionPage(2, (4, 4), 4), ParallelSizes(tp=2)
    assert "do not tile" in (page_fault(page, sizes, {0: map_page(page, sizes, 0)}) or "")


def test_ranks_that_disagree_on_the_page_are_found() -> None:
    page, sizes = OpaquePage(8), ParallelSizes(tp=2)
    mappings = {rank: map_page(page, sizes, rank) for rank in range(2)}
    mappings[1] = replace(mappings[1], canonical_bytes=17)
    assert "disagree" in (page_fault(page, sizes, mappings) or "")
    mappings[1] = replace(mappings[1], page_bytes=9)
    assert "a page of 9 bytes" in (page_fault(page, sizes, mappings) or "")


# What cannot be mapped ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "sizes", "why"),
    [
        (AttentionPage(6, (8, 8), 4), ParallelSizes(tp=4), "cannot be shared"),
        (AttentionPage(4, (8, 8), 4), ParallelSizes(tp=4, dcp=2), "do not tile"),
        (AttentionPage(4, (8, 8), 6), ParallelSizes(tp=8, dcp=2, interleave_tokens=4), "interleave"),
        (AttentionPage(4, (8, 8), 6, kernel_tokens=4), ParallelSizes(), "kernel blocks"),
        (
            AttentionPage(1, (8,), 6, kernel_tokens=3, extras=(1,)),
            ParallelSizes(tp=2, dcp=2, interleave_tokens=2),
            "do not nest",
        ),
        (AttentionPage(4, (8, 8), 6, canonical_tokens=4), ParallelSizes(), "canonical pages"),
        (AttentionPage(0, (8, 8), 6), ParallelSizes(), "at least 1"),
        (LatentPage((), 6), ParallelSizes(), "at least 1"),
        (LatentPage((0,), 6), ParallelSizes(), "at least 1"),
        (StatePage((StateTensor((3, 10), 2, 1, (Segment(4), Segment(4))),)), ParallelSizes(), "do not fill"),
        (StatePage((StateTensor((3, 10), 2, 2, (Segment(10),)),)), ParallelSizes(), "no axis"),
        (
            StatePage((StateTensor((3, 10), 2, 1, (Segment(10), Segment(0))),)),
            ParallelSizes(),
            "empty segment",
        ),
        (StatePage((StateTensor((3, 10), 0),)), ParallelSizes(), "at least 1"),
        (StatePage(()), ParallelSizes(), "empty state"),
        (StatePage((StateTensor((3, 10), 2, 1, (Segment(10),)),)), ParallelSizes(tp=4), "cannot be shared"),
        (OpaquePage(0), ParallelSizes(), "0 bytes"),
        (OpaquePage(8), ParallelSizes(tp=4, dcp=3), "does not divide"),
        (OpaquePage(8), ParallelSizes(tp=0), "at least 1"),
    ],
)
def test_what_has_no_canonical_place_says_why(page: LayerPage, sizes: ParallelSizes, why: str) -> None:
    assert why in (derived_page_fault(page, sizes) or "")


def test_units_that_neither_divide_nor_are_divided_cannot_be_shared() -> None:
    with pytest.raises(UnmappableError):
        unit_share(3, 4, 0)
    assert [unit_share(2, 4, rank) for rank in range(4)] == [range(1), range(1), range(1, 2), range(1, 2)]


# Small parts -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 100), st.integers(1, 9), st.data())
def test_exactly_one_holder_is_elected_and_steps_lead_to_the_next_turn(
    turn: int, writers: int, data: st.DataObject
) -> None:
    steps = [first_elected_step(turn, writers, index) for index in range(writers)]
    assert sorted(steps) == list(range(writers))
    index = data.draw(st.integers(0, writers - 1))
    assert elected(turn + steps[index], writers) == index


def test_irregular_offsets_are_not_made_regular() -> None:
    irregular = np.array([0, 1, 2, 9])
    with pytest.raises(UnmappableError):
        factor(irregular, np.arange(4))
    with pytest.raises(UnmappableError):
        factor(np.array([0, 1, 5, 6, 10, 12]), np.arange(6))
    assert factor(np.array([7]), np.array([0])) == ()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=12), st.integers(0, 5))
def test_merged_ranges_cover_what_they_are_made_of(ranges: list[tuple[int, int]], gap: int) -> None:
    starts, lengths = (np.array(column, dtype=np.int64) for column in zip(*ranges, strict=True))
    covered = np.zeros(80, bool)
    for start, length in ranges:
        covered[start : start + length] = True
    merged = merged_ranges(starts, lengths, gap)
    again = np.zeros(80, bool)
    for start, length in merged.tolist():
        again[start : start + length] = True
        assert covered[start]
        assert covered[start + length - 1]
    assert (again >= covered).all()
    assert (merged[1:, 0] - merged[:-1].sum(axis=1) > gap).all()
    if gap == 0:
        assert (again == covered).all()


def test_the_oracle_says_the_same_as_a_loop_over_single_bytes() -> None:
    """reference.py against the plainest possible words: NHD, K and V apart, two kernel blocks, DCP 2, an extra."""
    page = AttentionPage(
        2, (2, 3), 4, HeadOrder.NHD, Arrangement.SPLIT, kernel_tokens=2, extras=(1,), canonical_tokens=4
    )
    sizes = ParallelSizes(tp=4, dcp=2, interleave_tokens=2)
    for rank in range(4):
        head, tokens = rank // 2, ([0, 1, 4, 5], [2, 3, 6, 7])[rank % 2]
        right = []
        for kernel in (tokens[:2], tokens[2:]):
            for first, size in ((0, 2), (2, 3)):
                for token in kernel:
                    start = token // 4 * 44 + head * 20 + token % 4 * 5 + first
                    right += range(start, start + size)
            right += [token // 4 * 44 + 40 + token % 4 for token in kernel]
        numbers, granule = reference_page(page, sizes, rank)
        assert granule == 1
        assert numbers.tolist() == right
        assert bytes_of(page, sizes, rank).tolist() == right
