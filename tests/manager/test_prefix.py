"""The usable prefix over all groups: equal to the definition, for everything small and for much that is not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.manager.prefix import GroupChunks, Span, usable_boundary
from kvoffload.manager.request import GroupGeometry

KINDS = [None, 1, 2, 3, 5]
"""Reaches: full attention, one state (1), windows of 3, 4 and 6 tokens."""


def by_definition(groups: Sequence[GroupChunks], span: Span) -> int:
    """Token by token: every token that the next one may look at is on the device or in a chunk that is there."""

    def serves(group: GroupChunks, boundary: int) -> bool:
        size = group.geometry.tokens_per_chunk
        first = span.computed_tokens // size
        reach = boundary if group.geometry.reach_tokens is None else group.geometry.reach_tokens
        for token in range(max(span.computed_tokens, boundary - reach), boundary):
            chunk = token // size - first
            if chunk >= len(group.there) or not group.there[chunk]:
                return False
        return True

    def known(group: GroupChunks) -> int:
        size = group.geometry.tokens_per_chunk
        return (span.computed_tokens // size + len(group.there)) * size

    end = min(known(group) for group in groups)
    if span.limit_tokens is not None:
        end = min(end, span.limit_tokens)
    return max(
        (
            boundary
            for boundary in range(span.computed_tokens + 1, end + 1)
            if boundary % span.unit_tokens == 0 and all(serves(group, boundary) for group in groups)
        ),
        default=span.computed_tokens,
    )


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_two_groups_of_every_kind_and_every_pattern_of_chunks(first: int | None, second: int | None) -> None:
    patterns = list(itertools.product((False, True), repeat=4))
    for computed, limit in itertools.product((0, 2, 4), (None, 7)):
        span = Span(computed, limit, unit_tokens=2)
        for a, b in itertools.product(patterns, patterns):
            groups = [
                GroupChunks(GroupGeometry(0, 2, 1, 2, first), a),
                GroupChunks(GroupGeometry(1, 2, 1, 2, second), b),
            ]
            assert usable_boundary(groups, span) == by_definition(groups, span), (a, b, span)


@st.composite
def groups_and_spans(draw: st.DrawFn) -> tuple[list[GroupChunks], Span]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    unit = 12
    span = Span(
        unit * draw(st.integers(0, 2)), draw(st.one_of(st.none(), st.integers(0, 60))), unit_tokens=unit
    )
    groups = [
        GroupChunks(
            GroupGeometry(index, size, 1, 1, draw(st.one_of(st.none(), st.integers(1, 30)))),
            draw(st.lists(st.sampled_from([True, True, True, False]), max_size=60 // size)),
        )
        for index, size in enumerate(sizes)
    ]
    return groups, span


@settings(max_examples=500, deadline=None)
@given(groups_and_spans())
def test_groups_of_unequal_blocks(case: tuple[list[GroupChunks], Span]) -> None:
    groups, span = case
    assert usable_boundary(groups, span) == by_definition(groups, span)


def test_a_window_needs_its_last_chunks_only_and_a_state_just_one() -> None:
    full = GroupChunks(GroupGeometry(0, 128, 1, 128), [True] * 8)
    window = GroupChunks(GroupGeometry(1, 128, 1, 128, 255), [False] * 4 + [True] * 2 + [False] * 2)
    state = GroupChunks(GroupGeometry(2, 128, 1, 128, 1), [False] * 5 + [True] + [False] * 2)
    span = Span(0, None, 128)
    assert usable_boundary([full, window], span) == 768
    assert usable_boundary([full, state], span) == 768
    assert usable_boundary([full, window, state], span) == 768
    assert usable_boundary([full, window, state], Span(0, 767, 128)) == 0
