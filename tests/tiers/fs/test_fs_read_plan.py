"""Which reads fill given ranges: pure arithmetic, against a set of bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kvoffload.layout.chunk_format import padded_bytes
from kvoffload.layout.partial import RowShape
from kvoffload.tiers.chunk_form import Part, Read, form_of, plan_reads

PAGE = 4096


@st.composite
def rows(draw: st.DrawFn) -> tuple[int, int, tuple[tuple[int, int], ...], int]:
    """(bytes of a payload, of a piece, ranges, longest gap), in units so small that every byte can be looked at."""
    payload = draw(st.integers(1, 16 * PAGE))
    piece = draw(st.integers(1, 3)) * PAGE
    bounds = sorted(draw(st.lists(st.integers(0, payload), min_size=2, max_size=12, unique=True)))
    ranges = tuple((start, end - start) for start, end in zip(bounds[::2], bounds[1::2], strict=False))
    return payload, piece, ranges, draw(st.integers(0, 4)) * PAGE


@given(rows())
def test_reads_fill_the_ranges_by_whole_pieces_and_nothing_else(row: tuple) -> None:
    payload, piece, ranges, gap = row
    reads = plan_reads(ranges, payload, piece, gap)
    parts = [part for read in reads for part in read.parts]
    touched = {start // piece for start, length in ranges for start in range(start, start + length, PAGE)}
    touched |= {(start + length - 1) // piece for start, length in ranges}
    filled = {number for start, end in parts for number in range(start // piece, -(-end // piece))}
    assert filled == touched, "other pieces than those that the ranges touch"
    for start, end in parts:
        assert start % piece == 0
        assert end % piece == 0 or end == padded_bytes(payload)
    assert all(before.end < after.start for before, after in itertools.pairwise(parts))


@given(rows())
def test_what_a_shape_says_of_a_load_is_what_its_form_moves(row: tuple) -> None:
    payload, piece, ranges, _ = row
    shape = RowShape(payload, piece, ranges)
    assert shape.needed_bytes <= shape.touched_bytes == form_of(shape).part_bytes <= payload
    assert RowShape(payload, piece).touched_bytes == payload


@given(rows())
def test_near_parts_are_read_at_once_and_far_ones_are_not(row: tuple) -> None:
    payload, piece, ranges, gap = row
    reads = plan_reads(ranges, payload, piece, gap)
    for before, after in itertools.pairwise(reads):
        assert after.start - before.parts[-1].end > gap
    for read in reads:
        gaps = [b.start - a.end for a, b in zip(read.parts, read.parts[1:], strict=False)]
        assert all(0 < size <= gap for size in gaps)
    # The header is read in any case: what is near to it comes along.
    first = reads[0]
    assert first.start == (0 if first.parts[0].start <= gap else first.parts[0].start)


@given(rows())
def test_buffers_lie_where_the_bytes_belong(row: tuple) -> None:
    payload, piece, ranges, gap = row
    source = bytes(number // PAGE for number in range(padded_bytes(payload)))
    target, waste = memoryview(bytearray(b"\xff" * len(source))), memoryview(bytearray(gap))
    for read in plan_reads(ranges, payload, piece, gap):
        at = read.start
        for buffer in read.buffers(target, waste):
            buffer[:] = source[at : at + len(buffer)]
            at += len(buffer)
        assert at == read.start + read.size_bytes
    for start, length in ranges:
        assert target[start : start + length] == source[start : start + length]
    assert all(found in (right, 255) for found, right in zip(target, source, strict=True))


def test_a_read_has_no_more_buffers_than_the_system_takes() -> None:
    ranges = [(number * 2 * PAGE, PAGE) for number in range(2000)]
    reads = plan_reads(ranges, 4000 * PAGE, PAGE)
    assert sum(len(read.parts) for read in reads) == 2000
    waste = memoryview(bytearray(PAGE))
    row = memoryview(bytearray(4000 * PAGE))
    assert all(len(read.buffers(row, waste)) <= 512 for read in reads)
    assert len(reads) < 20


def test_a_form_knows_both_lengths_that_a_file_may_have() -> None:
    size = 300 * PAGE
    form = form_of(RowShape(size, PAGE, ((0, 1), (200 * PAGE, PAGE + 1))))
    assert (form.header_bytes, form.file_bytes, form.single_file_bytes) == (8192, 8192 + size, 4096 + size)
    assert form.has_length(8192 + size)
    assert form.has_length(4096 + size)
    assert not form.has_length(4096)
    assert form.part_bytes == 3 * PAGE
    assert form.reads == (
        Read(0, (Part(0, PAGE),)),
        Read(200 * PAGE, (Part(200 * PAGE, 202 * PAGE),)),
    )
    whole = form_of(size)
    assert (whole.reads, whole.header_bytes, whole.is_partial) == (None, 4096, False)
    assert form_of(RowShape(0)).has_length(4096)
