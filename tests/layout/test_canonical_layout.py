"""Stored once, readable under any parallel layout: byte for byte, from an unsharded reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_strategies import NUM_SLOTS, layers_and_sizes, same_under_others, thorough

from kvoffload.config.pages import (
    AttentionPage,
    HeadOrder,
    LatentPage,
    LayerFacts,
    OpaquePage,
    Segment,
    StatePage,
    StateTensor,
)
from kvoffload.layout.canonical import (
    CanonicalLayer,
    CanonicalLayout,
    even_stages,
    in_model_order,
    names_of_all_stages,
    plan_canonical,
    seen_fault,
    with_canonical_tokens,
    with_seen_order,
)
from kvoffload.layout.certify import SeenTensor
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.testing.layout_engine import GARBAGE, LayoutEngine, position_bytes, slice_of
from kvoffload.types import Direction
from kvoffload.worker.pages_canonical import bind_canonical

BLOCKS = 9


def all_places(per_chunk: int, count: int) -> list[tuple[int, int]]:
    return [(slot, position) for slot in range(NUM_SLOTS) for position in range(per_chunk)][:count]


def rows_for(layout: CanonicalLayout) -> np.ndarray:
    return np.full((NUM_SLOTS, layout.row_bytes + 8), GARBAGE, np.uint8)


@thorough(max_examples=60)
@given(layers_and_sizes(), st.data())
def test_what_one_parallel_layout_stores_any_other_reads(group: tuple, data: st.DataObject) -> None:
    layers, sizes = group
    per_chunk = data.draw(st.integers(1, 3))
    ours = CanonicalLayout(layers, per_chunk, sizes)
    others, other_sizes = data.draw(same_under_others(layers, sizes))
    theirs = CanonicalLayout(others, per_chunk, other_sizes)
    assert ours.fault() is None
    assert theirs.fault() is None
    assert ours.portable
    assert ours.signature() == theirs.signature()
    assert ours.row_bytes == theirs.row_bytes
    truth = position_bytes(ours, BLOCKS, seed=1)
    rows = rows_for(ours)
    places = all_places(per_chunk, 5)
    source = data.draw(st.permutations(range(BLOCKS)))[: len(places)]
    if data.draw(st.booleans()):
        source = range(2, 2 + len(places))  # neighbours: one long run
    LayoutEngine(ours, truth, BLOCKS).copy(
        Direction.STORE, [(b, *p) for b, p in zip(source, places, strict=True)], rows
    )
    reader = LayoutEngine(theirs, None, BLOCKS, pad_bytes=3)
    reader.copy(Direction.LOAD, [(i, *place) for i, place in enumerate(places)], rows)
    for rank, pages in enumerate(reader.device):
        for layer, found in zip(theirs.of_rank(rank), pages, strict=True):
            right = slice_of(others[layer.number].page, other_sizes, rank, truth[layer.number][list(source)])
            np.testing.assert_array_equal(found[: len(places), :-3], right)
            assert (found[:, -3:] == GARBAGE).all(), "the padding behind a page was written"
            assert (found[len(places) :] == GARBAGE).all(), "a block that was not asked for was written"
    assert (rows[:, ours.row_bytes :] == GARBAGE).all()


@thorough(max_examples=40)
@given(layers_and_sizes(), st.integers(1, 3))
def test_stores_write_every_byte_of_a_row_once(group: tuple, per_chunk: int) -> None:
    layers, sizes = group
    layout = CanonicalLayout(layers, per_chunk, sizes)
    rows = rows_for(layout)
    entries = [(i, *place) for i, place in enumerate(all_places(per_chunk, NUM_SLOTS * per_chunk))]
    engine = LayoutEngine(layout, position_bytes(layout, len(entries), seed=2), len(entries))
    copied = engine.copy(Direction.STORE, entries, rows)
    assert sum(outcome.copied_bytes for outcome in copied) == NUM_SLOTS * layout.row_bytes


@thorough(max_examples=40)
@given(layers_and_sizes(), st.integers(1, 3), st.sampled_from((0, 5, 10**9)))
def test_a_rank_loads_from_its_byte_ranges_alone(group: tuple, per_chunk: int, gap_bytes: int) -> None:
    layers, sizes = group
    layout = CanonicalLayout(layers, per_chunk, sizes)
    entries = [(i, *place) for i, place in enumerate(all_places(per_chunk, NUM_SLOTS * per_chunk))]
    truth = position_bytes(layout, len(entries), seed=3)
    rows = rows_for(layout)
    LayoutEngine(layout, truth, len(entries)).copy(Direction.STORE, entries, rows)
    reader = LayoutEngine(layout, None, len(entries))
    for rank in range(sizes.world_size):
        ranges = layout.byte_ranges(rank, gap_bytes)
        assert (ranges[1:, 0] > ranges[:-1].sum(axis=1) + gap_bytes).all()
        needed = sum(layer.mapping.page_bytes for layer in layout.of_rank(rank)) * per_chunk
        assert gap_bytes or ranges[:, 1].sum() == needed
        partial = np.full_like(rows, GARBAGE)
        for start, length in ranges.tolist():
            partial[:, start : start + length] = rows[:, start : start + length]
        reader.copy(Direction.LOAD, entries, partial, ranks=[rank])
        for layer, found in zip(layout.of_rank(rank), reader.device[rank], strict=True):
            np.testing.assert_array_equal(
                found, slice_of(layers[layer.number].page, sizes, rank, truth[layer.number])
            )


def group_of(page, sizes: ParallelSizes, count: int = 4, per_chunk: int = 2) -> CanonicalLayout:
    stages = even_stages(count, sizes.pp)
    layers = tuple(CanonicalLayer(f"layer.{i}", page, stage) for i, stage in enumerate(stages))
    return CanonicalLayout(layers, per_chunk, sizes)


def test_the_heads_of_a_tensor_parallel_rank_are_one_range_per_block_whatever_the_order() -> None:
    for order in HeadOrder:
        page = AttentionPage(8, (128, 128), 16, order)
        layout = group_of(page, ParallelSizes(tp=4))
        block = 8 * 16 * 256
        expected = [
            (layer * 2 * block + b * block + 3 * block // 4, block // 4)
            for layer in range(4)
            for b in range(2)
        ]
        assert layout.byte_ranges(3).tolist() == [list(pair) for pair in expected]
    whole = group_of(page, ParallelSizes())
    assert whole.byte_ranges(0).tolist() == [[0, whole.row_bytes]]


def test_a_pipeline_stage_needs_its_layers_and_no_other_byte() -> None:
    layout = group_of(AttentionPage(8, (128, 128), 16), ParallelSizes(pp=3), count=7)
    assert even_stages(7, 3) == (0, 0, 1, 1, 1, 2, 2)
    layer = layout.row_bytes // 7
    assert [layout.byte_ranges(rank).tolist() for rank in range(3)] == [
        [[0, 2 * layer]],
        [[2 * layer, 3 * layer]],
        [[5 * layer, 2 * layer]],
    ]


def test_rows_and_meaning_are_the_same_under_any_parallelism() -> None:
    page = AttentionPage(4, (128, 128), 16)
    layouts = [group_of(page, ParallelSizes(tp=tp, pp=pp)) for tp in (1, 2, 4, 8, 16) for pp in (1, 2, 4)]
    layouts += [group_of(replace(page, order=HeadOrder.NHD), ParallelSizes(tp=2))]
    assert len({(layout.row_bytes, layout.signature()) for layout in layouts}) == 1


def test_context_parallel_engines_share_chunks_with_engines_of_smaller_blocks() -> None:
    """DCP 4 makes blocks of 64 tokens out of blocks of 16: the same chunk is one block there, and four elsewhere."""
    page = AttentionPage(2, (8, 8), 16, canonical_tokens=16)
    plain = group_of(page, ParallelSizes(tp=2), per_chunk=4)
    spread = group_of(page, ParallelSizes(tp=8, dcp=4, interleave_tokens=2), per_chunk=1)
    assert plain.signature() == spread.signature()
    rows = rows_for(plain)
    truth = position_bytes(plain, 4, seed=4)
    LayoutEngine(plain, truth, 4).copy(Direction.STORE, [(b, 2, b) for b in range(4)], rows)
    reader = LayoutEngine(spread, None, 1)
    reader.copy(Direction.LOAD, [(0, 2, 0)], rows)
    for rank, pages in enumerate(reader.device):
        for number, found in enumerate(pages):
            right = slice_of(page, spread.sizes, rank, truth[number].reshape(1, -1))
            np.testing.assert_array_equal(found, right)


def test_other_heads_parts_tokens_layers_or_blocks_are_another_meaning() -> None:
    page, sizes = AttentionPage(4, (128, 128), 16), ParallelSizes()
    others = [
        group_of(replace(page, kv_heads=8), sizes),
        group_of(replace(page, parts=(256,)), sizes),
        group_of(replace(page, block_tokens=32), sizes),
        group_of(replace(page, extras=(4,)), sizes),
        group_of(replace(page, canonical_order=HeadOrder.NHD), sizes),
        group_of(LatentPage((256,), 16), sizes),
        group_of(page, sizes, count=5),
        group_of(page, sizes, per_chunk=3),
        group_of(OpaquePage(4 * 256 * 16), sizes),
    ]
    assert len({layout.signature() for layout in [group_of(page, sizes), *others]}) == 10


def test_a_state_of_other_segments_is_another_meaning() -> None:
    # Ranks that cut an axis otherwise put another whole together from their shares.
    by_parts = StatePage((StateTensor((3, 16), 2, axis=1, segments=(Segment(2, 4), Segment(2, 4))),))
    as_one = StatePage((StateTensor((3, 16), 2, axis=1, segments=(Segment(4, 4),)),))
    whole = StatePage((StateTensor((3, 16), 2),))
    groups = [group_of(page, ParallelSizes(tp=2)) for page in (by_parts, as_one, whole)]
    assert len({group.row_bytes for group in groups}) == 1
    assert len({group.signature() for group in groups}) == 3


def test_an_opaque_layer_keeps_every_ranks_bytes_apart_and_its_chunk_is_not_portable() -> None:
    sizes = ParallelSizes(tp=2, pp=2)
    layout = group_of(OpaquePage(40), sizes, count=2)
    assert (layout.fault(), layout.portable, layout.opaque_layers) == (None, False, ("layer.0", "layer.1"))
    assert layout.signature() != group_of(OpaquePage(40), ParallelSizes(tp=4), count=2).signature()
    assert layout.byte_ranges(1).tolist() == [[40, 40], [120, 40]]
    owners = np.zeros(layout.row_bytes, int)
    for rank in range(4):
        for start, length in layout.byte_ranges(rank).tolist():
            owners[start : start + length] += 1
    assert (owners == 1).all()


def test_one_opaque_layer_makes_the_whole_chunk_not_portable() -> None:
    layers = (CanonicalLayer("a", AttentionPage(4, (8, 8), 16)), CanonicalLayer("b", OpaquePage(40)))
    assert not CanonicalLayout(layers, 1, ParallelSizes()).portable


def test_a_slab_of_all_layers_is_cut_into_its_layers() -> None:
    layout = group_of(AttentionPage(4, (8, 8), 4), ParallelSizes(tp=2), count=3)
    truth = position_bytes(layout, 2, seed=5)
    engine = LayoutEngine(layout, truth, 2)
    rows, slab_rows = rows_for(layout), rows_for(layout)
    entries = [(0, 1, 0), (1, 1, 1)]
    engine.copy(Direction.STORE, entries, rows)
    engine.device = [[np.concatenate(pages, axis=1)] for pages in engine.device]
    engine.copy(Direction.STORE, entries, slab_rows)
    np.testing.assert_array_equal(rows, slab_rows)


def test_ranks_that_hold_the_same_bytes_share_the_work_of_one_chunk() -> None:
    layout = group_of(LatentPage((64,), 16), ParallelSizes(tp=4), count=8, per_chunk=1)
    engine = LayoutEngine(layout, position_bytes(layout, 1, seed=6), 1)
    assert [o.copied_bytes for o in engine.copy(Direction.STORE, [(0, 3, 0)], rows_for(layout))] == [
        layout.row_bytes // 4
    ] * 4


def test_ranks_that_hold_the_same_bytes_take_turns_from_chunk_to_chunk() -> None:
    layout = group_of(LatentPage((64,), 16), ParallelSizes(tp=4), count=1)
    engine = LayoutEngine(layout, position_bytes(layout, 2), 2)
    for slot in range(NUM_SLOTS):
        outcomes = engine.copy(Direction.STORE, [(0, slot, 0), (1, slot, 1)], rows_for(layout))
        writers = [rank for rank, outcome in enumerate(outcomes) if outcome.copied_bytes]
        assert writers == [slot % 4]


def test_a_plan_keeps_what_is_certified_canonical_and_the_rest_opaque() -> None:
    page, sizes = AttentionPage(4, (8, 8), 4), ParallelSizes(tp=2)
    facts = [LayerFacts("a", page, 128), LayerFacts("b", None, 40), LayerFacts("c", page, 128)]
    layout, reasons = plan_canonical(facts, 2, sizes)
    assert [layer.page for layer in layout.layers] == [page, OpaquePage(40), page]
    assert (layout.fault(), layout.portable, layout.opaque_layers) == (None, False, ("b",))
    assert reasons == {"b": "the kind of this layer is not known"}
    layout, reasons = plan_canonical(facts[::2], 2, sizes)
    assert (layout.portable, reasons) == (True, {})


def test_registered_tensors_fit_the_plan_or_are_named() -> None:
    page, sizes = AttentionPage(4, (8, 8), 4), ParallelSizes(tp=2)
    layout, _ = plan_canonical([LayerFacts("a", page, 128), LayerFacts("b", None, 40)], 1, sizes)
    nhd = SeenTensor((5, 2, 4, 8), (64, 8, 16, 1), 2, "BHNC")
    assert seen_fault(layout, 1, {"a": nhd}) is None
    ordered = with_seen_order(layout, 1, {"a": nhd})
    assert ordered.layers[0].page == replace(page, order=HeadOrder.NHD)
    assert (ordered.fault(), ordered.signature()) == (None, layout.signature())
    assert seen_fault(layout, 1, {}) == "layer a was not registered"
    assert "layer a: axis H" in (seen_fault(layout, 1, {"a": replace(nhd, shape=(5, 4, 4, 8))}) or "")


def test_a_layout_that_is_not_proved_is_never_bound() -> None:
    layout = group_of(AttentionPage(6, (8, 8), 4), ParallelSizes(tp=4))
    assert "cannot be shared" in (layout.fault() or "")
    with pytest.raises(AssertionError):
        bind_canonical(layout, 0, [], np.zeros((1, 10**6), np.uint8))


def test_pages_or_rows_that_are_too_short_are_refused() -> None:
    layout = group_of(AttentionPage(2, (8, 8), 4), ParallelSizes(), count=1)
    page = layout.of_rank(0)[0].mapping.page_bytes
    with pytest.raises(AssertionError):
        bind_canonical(layout, 0, [np.zeros((2, page - 1), np.uint8)], rows_for(layout))
    with pytest.raises(AssertionError):
        bind_canonical(
            layout, 0, [np.zeros((2, page), np.uint8)], rows_for(layout)[:, : layout.row_bytes - 1]
        )


def test_a_stage_without_layers_of_a_group_has_nothing_to_copy() -> None:
    layers = (CanonicalLayer("a", AttentionPage(2, (8, 8), 4), stage=1),)
    layout = CanonicalLayout(layers, 1, ParallelSizes(pp=2))
    engine = LayoutEngine(layout, position_bytes(layout, 1, seed=7), 1)
    assert [o.copied_bytes for o in engine.copy(Direction.STORE, [(0, 0, 0)], rows_for(layout))] == [
        0,
        layout.row_bytes,
    ]
    assert layout.byte_ranges(0).tolist() == []


def test_layer_names_are_ordered_by_their_numbers() -> None:
    names = ["model.layers.10.attn", "model.layers.2.attn", "model.layers.2.indexer", "embed"]
    assert in_model_order(names) == [
        "embed",
        "model.layers.2.attn",
        "model.layers.2.indexer",
        "model.layers.10.attn",
    ]


def test_the_layers_of_other_stages_are_named_after_ones_own() -> None:
    everything = tuple(f"model.layers.{i}.attn" for i in range(12))
    stages = even_stages(12, 3)
    for stage in range(3):
        own = [name for name, owner in zip(everything, stages, strict=True) if owner == stage]
        assert names_of_all_stages(own[::-1], stages, stage) == everything


@pytest.mark.parametrize(
    "own",
    [
        [],
        ["model.layers.2.attn"],
        ["model.layers.2.attn", "model.layers.4.attn"],
        ["model.layers.2.attn", "model.layers.3.indexer"],
        ["model.layers.2.attn", "other.layers.3.attn"],
        ["2.layers.2.attn", "2.layers.3.attn"],
        ["2.layers.2", "3.layers.3"],
        ["layers2", "layers3"],
    ],
)
def test_names_that_do_not_tell_are_not_guessed(own: list[str]) -> None:
    assert names_of_all_stages(own, (0, 0, 1, 1), 1) is None


def test_canonical_tokens_are_a_matter_of_pages_with_tokens() -> None:
    assert with_canonical_tokens(LatentPage((4,), 16), 4) == LatentPage((4,), 16, canonical_tokens=4)
    assert with_canonical_tokens(OpaquePage(4), 4) == OpaquePage(4)
