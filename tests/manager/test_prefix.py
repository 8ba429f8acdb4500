"""The usable prefix over all groups: equal to the definition, for everything small and for much that is not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.manager.prefix import GroupChunks, Span, usable_boundary
from kvoffload.manager.request import GroupGeometry

KINDS = [(None, None), (1, None), (2, None), (3, None), (5, None), (None, 4), (None, 3)]
"""Reaches and local stretches: full attention, one state (1), windows of 3, 4 and 6 tokens, stretches of 4 and of 3."""


def sees(geometry: GroupGeometry, token: int, other: int) -> bool:
    """Whether a token looks at an earlier one, itself or with what it has read."""
    if geometry.local_tokens is not None:
        return token // geometry.local_tokens == other // geometry.local_tokens
    return geometry.reach_tokens is None or token - other <= geometry.reach_tokens


def by_definition(groups: Sequence[GroupChunks], span: Span) -> int:
    """Token by token: every token that the next one may look at is on the device or in a chunk that is there."""

    def serves(group: GroupChunks, boundary: int) -> bool:
        size = group.geometry.tokens_per_chunk
        first = span.computed_tokens // size
        for token in range(span.computed_tokens, boundary):
            if not sees(group.geometry, boundary, token):
                continue
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
def test_two_groups_of_every_kind_and_every_pattern_of_chunks(
    first: tuple[int | None, int | None], second: tuple[int | None, int | None]
) -> None:
    patterns = list(itertools.product((False, True), repeat=4))
    for computed, limit in itertools.product((0, 2, 4), (None, 7)):
        span = Span(computed, limit, unit_tokens=2)
        for a, b in itertools.product(patterns, patterns):
            groups = [
                GroupChunks(GroupGeometry(0, 2, 1, 2, first[0], local_tokens=first[1]), a),
                GroupChunks(GroupGeometry(1, 2, 1, 2, second[0], local_tokens=second[1]), b),
            ]
            assert usable_boundary(groups, span) == by_definition(groups, span), (a, b, span)


def _local_group(index: int, size: int, local_tokens: int) -> GroupGeometry:
    return GroupGeometry(index, size, 1, 1, local_tokens=local_tokens)


@st.composite
def groups_and_spans(draw: st.DrawFn) -> tuple[list[GroupChunks], Span]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    unit = 12
    span = Span(
        unit * draw(st.integers(0, 2)), draw(st.one_of(st.none(), st.integers(0, 60))), unit_tokens=unit
    )
    groups = [
        GroupChunks(
            draw(
                st.one_of(
                    st.just(GroupGeometry(index, size, 1, 1)),
                    st.integers(1, 30).map(partial(GroupGeometry, index, size, 1, 1)),
                    st.integers(1, 30).map(
                        partial(_local_group, index, size),
                    ),
                )
            ),
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
