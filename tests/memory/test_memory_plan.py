"""Plans: areas and pieces tile exactly, within their bounds, for any sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload.errors import RegionSizeError
from kvoffload.memory.plan import (
    MAX_PIN_PIECE_BYTES,
    PAGE_BYTES,
    GroupArea,
    RegionPlan,
    pin_plan,
    plan_region,
)

GIB = 1024**3
row_sizes = st.lists(st.integers(1, 40 * 1024**2), min_size=1, max_size=8)


def strides_of(row_bytes: list[int]) -> list[int]:
    return [(size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES for size in row_bytes]


@given(row_sizes, st.integers(0, 2**40))
def test_areas_tile_the_region_and_no_row_that_would_fit_is_missing(row_bytes, extra):
    strides = strides_of(row_bytes)
    budget = sum(strides) + extra
    plan = plan_region(budget, row_bytes)
    assert [area.row_stride_bytes for area in plan.groups] == strides
    next_byte = 0
    for area in plan.groups:
        assert area.first_byte == next_byte
        assert area.first_byte % PAGE_BYTES == 0
        assert area.rows >= 1
        next_byte += area.rows * area.row_stride_bytes
    assert plan.total_bytes == next_byte
    assert budget - min(strides) < plan.total_bytes <= budget


@given(row_sizes, st.integers(0, 2**40), st.data())
def test_groups_get_rows_for_equally_many_tokens(row_bytes, extra, data):
    strides = strides_of(row_bytes)
    tokens = [data.draw(st.sampled_from([4, 16, 64, 3584])) for _ in strides]
    budget = sum(strides) + extra
    plan = plan_region(budget, row_bytes, tokens_per_row=tokens)
    served = [area.rows * span for area, span in zip(plan.groups, tokens, strict=True)]
    shortest = min(served)
    # No other shares would serve more: what the longest group has too much is less than a row for everybody.
    needed = sum(
        -(-(shortest + max(tokens)) // span) * stride for span, stride in zip(tokens, strides, strict=True)
    )
    assert shortest + max(tokens) > shortest
    assert needed > budget - sum(strides) or all(area.rows == 1 for area in plan.groups)


@given(st.integers(1, 2**30), st.integers(1, 2**44))
def test_one_group_gets_exactly_the_rows_that_fit(row_bytes, budget):
    stride = strides_of([row_bytes])[0]
    if budget < stride:
        with pytest.raises(RegionSizeError):
            plan_region(budget, [row_bytes])
    else:
        assert plan_region(budget, [row_bytes]).groups == (GroupArea(0, stride, budget // stride),)


@given(row_sizes, st.integers(-(2**40), 2**40))
def test_a_budget_below_one_row_of_each_group_is_an_error_whose_remedy_works(row_bytes, budget):
    needed = sum(strides_of(row_bytes))
    if budget >= needed:
        plan_region(budget, row_bytes)
        return
    with pytest.raises(RegionSizeError) as caught:
        plan_region(budget, row_bytes)
    message = str(caught.value)
    assert f"raise cpu_bytes_to_use to at least {needed} bytes" in message
    assert f"{budget} bytes" in message
    assert "\n" not in message
    assert len(plan_region(needed, row_bytes).groups) == len(row_bytes)


@pytest.mark.parametrize("budget", [0, -1, 4095])
def test_zero_negative_and_less_than_one_row_name_needed_available_and_remedy(budget):
    with pytest.raises(
        RegionSizeError, match=r"needed .*4096 bytes.*available .*cpu_bytes_to_use.*at least 4096"
    ):
        plan_region(budget, [1])


def test_eight_groups_of_unequal_pages_hold_nearly_what_the_bytes_allow():
    rows = [factor * 2**17 for factor in range(1, 9)]
    budget = 10**9 + 7
    plan = plan_region(budget, rows)
    assert budget - plan.total_bytes < 2**17
    assert min(area.rows for area in plan.groups) >= 0.95 * (budget / sum(rows))


def test_groups_with_odd_blocks_hold_nearly_what_the_bytes_allow():
    spans = [3584, 4, 3584, 64]
    rows = [2**20, 4096, 2**19, 2**16]
    budget = 4 * 10**9
    plan = plan_region(budget, rows, tokens_per_row=spans)
    served = min(area.rows * span for area, span in zip(plan.groups, spans, strict=True))
    assert served >= 0.95 * budget / sum(size / span for size, span in zip(rows, spans, strict=True))


def test_page_size_is_a_parameter():
    assert plan_region(2**20, [5000], page_bytes=65536).groups == (GroupArea(0, 65536, 16),)


def test_fingerprints_differ_where_plans_differ_and_stay_short():
    plans = [plan_region(2**20, [4096]), plan_region(2**20, [8192]), plan_region(2**20, [4096, 8192])]
    many = [RegionPlan(tuple(GroupArea(0, 4096, rows) for rows in (*range(1, 500), last))) for last in (7, 8)]
    fingerprints = {plan.fingerprint for plan in plans + many}
    assert len(fingerprints) == 5
    assert max(map(len, fingerprints)) < 1000
    assert "256x4096" in fingerprints


# -- pinning -----------------------------------------------------------------------------------------------


@st.composite
def plans_and_pieces(draw):
    row_bytes = draw(row_sizes)
    total = draw(st.integers(1, 2**40))
    plan = plan_region(sum(strides_of(row_bytes)) + total, row_bytes)
    least = max(area.row_stride_bytes for area in plan.groups)
    return plan, draw(st.integers(max(least, plan.total_bytes // 1000), plan.total_bytes + least))


@given(plans_and_pieces())
def test_pieces_cover_every_byte_once_cut_on_row_edges(case):
    plan, max_piece = case
    pieces = pin_plan(plan, max_piece)
    edges = {0}
    next_byte = 0
    for piece in pieces:
        assert piece.first_byte == next_byte
        assert 0 < piece.size_bytes <= max_piece
        next_byte += piece.size_bytes
        edges.add(next_byte)
    assert next_byte == plan.total_bytes
    for edge in edges:
        assert any(
            area.first_byte <= edge <= area.first_byte + area.size_bytes
            and (edge - area.first_byte) % area.row_stride_bytes == 0
            for area in plan.groups
        )


@pytest.mark.parametrize("row_bytes", [4096, 12345, 40_000_003])
def test_600_gigabytes_are_pinned_in_pieces_of_at_most_64_gib(row_bytes):
    plan = plan_region(int(600e9), [row_bytes])
    pieces = pin_plan(plan)
    assert len(pieces) == 9
    assert max(piece.size_bytes for piece in pieces) <= 64 * GIB == MAX_PIN_PIECE_BYTES
    assert sum(piece.size_bytes for piece in pieces) == plan.total_bytes
    assert all(piece.first_byte % plan.groups[0].row_stride_bytes == 0 for piece in pieces)


def test_a_row_larger_than_a_piece_is_an_error_that_says_how_large():
    plan = plan_region(2**20, [4096, 65536])
    with pytest.raises(RegionSizeError, match=r"group 1 needs .*65536.*available .*8192.*at most 8192 bytes"):
        pin_plan(plan, 8192)
