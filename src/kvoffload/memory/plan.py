"""Where every row of a host region lies, and how the region is cut for pinning. Pure arithmetic: no memory, no I/O.

region:  [ group 0: row 0 | row 1 | … ][ group 1: row 0 | … ] …      a row begins on a memory page
         ^ first_byte of group 0        ^ first_byte of group 1
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.config.units import format_bytes
from kvoffload.errors import RegionSizeError

PAGE_BYTES = 4096
MAX_PIN_PIECE_BYTES = 64 * 1024**3
_MAX_FINGERPRINT_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class GroupArea:
    """The rows of one group: `rows` rows of `row_stride_bytes`, the first at `first_byte` of the region."""

    first_byte: int
    row_stride_bytes: int
    rows: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self.row_stride_bytes * self.rows


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """The areas of all groups, one behind the other without a gap."""

    groups: tuple[GroupArea, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole region: what is mapped, exactly."""
        return sum(area.size_bytes for area in self.groups)

    @property
    def fingerprint(self) -> str:
        """Text that is equal for equal plans only: `rows x stride` of each group, a digest behind it if that is long."""
        text = "+".join(f"{area.rows}x{area.row_stride_bytes}" for area in self.groups)
        if len(text) <= _MAX_FINGERPRINT_CHARACTERS:
            return text
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{text[: _MAX_FINGERPRINT_CHARACTERS // 2]}… sha256 {digest}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the region that is pinned by one call."""

    first_byte: int
    size_bytes: int


def plan_region(
    budget_bytes: int,
    row_bytes_per_group: Sequence[int],
    page_bytes: int = PAGE_BYTES,
    tokens_per_row: Sequence[int] | None = None,
) -> RegionPlan:
    """Share a budget between groups.

    One group gets `budget_bytes // stride` rows. Several groups get rows for equally many tokens, at least one row each:
    a prefix that one group has forgotten is of no use in the others. Less than the smallest row stays unused.

    Args:
        budget_bytes: What the user allows for the whole region of one engine (`cpu_bytes_to_use`).
        row_bytes_per_group: Bytes of one chunk of each group, all workers together; rounded up to `page_bytes`.
        page_bytes: Rows begin on multiples of this.
        tokens_per_row: How many tokens a row of each group stands for; not given: equally many.

    Raises:
        RegionSizeError: the budget does not hold one row of each group.
    """
    assert row_bytes_per_group, "a region needs at least one group"
    assert all(size > 0 for size in row_bytes_per_group), row_bytes_per_group
    assert page_bytes > 0, page_bytes
    strides = [-(-size // page_bytes) * page_bytes for size in row_bytes_per_group]
    needed_bytes = sum(strides)
    if budget_bytes < needed_bytes:
        raise RegionSizeError(
            f"host region: needed {format_bytes(needed_bytes)} for one row of each of {len(strides)} group(s), "
            f"available {format_bytes(budget_bytes)} (cpu_bytes_to_use); "
            f"raise cpu_bytes_to_use to at least {needed_bytes} bytes"
        )
    tokens = list(tokens_per_row or [1] * len(strides))
    assert len(tokens) == len(strides), (tokens, strides)
    areas, first_byte = [], 0
    for stride, rows in zip(strides, _share(budget_bytes, strides, tokens), strict=True):
        areas.append(GroupArea(first_byte, stride, rows))
        first_byte += stride * rows
    return RegionPlan(tuple(areas))


def pin_plan(plan: RegionPlan, max_piece_bytes: int = MAX_PIN_PIECE_BYTES) -> tuple[Piece, ...]:
    """Cut a region into pieces that a driver can pin.

    Each piece holds whole rows of one group and at most `max_piece_bytes`; together they cover every byte exactly once.
    The cost grows with the number of pieces, not of rows.

    Raises:
        RegionSizeError: one row alone is larger than a piece may be.
    """
    pieces = []
    for group, area in enumerate(plan.groups):
        rows_per_piece = max_piece_bytes // area.row_stride_bytes
        if rows_per_piece < 1:
            raise RegionSizeError(
                f"host region: pinning one row of group {group} needs {format_bytes(area.row_stride_bytes)}, "
                f"available {format_bytes(max_piece_bytes)} (largest piece the driver pins); "
                f"lower blocks_per_chunk or block_size so that a row is at most {max_piece_bytes} bytes"
            )
        step_bytes = rows_per_piece * area.row_stride_bytes
        end = area.first_byte + area.size_bytes
        pieces += [
            Piece(first, min(step_bytes, end - first)) for first in range(area.first_byte, end, step_bytes)
        ]
    return tuple(pieces)


def _share(budget_bytes: int, strides: list[int], tokens: list[int]) -> list[int]:
    """Rows of each group; assumes that one row of each fits."""
    unit = math.lcm(*tokens)
    rows = [0] * len(strides)
    left_bytes = budget_bytes
    waiting = set(range(len(strides)))
    while waiting:
        served = left_bytes * unit // sum(strides[group] * (unit // tokens[group]) for group in waiting)
        # Groups that would get nothing take one row, and the others share what is left.
        small = {group for group in waiting if served < tokens[group]}
        for group in small or waiting:
            rows[group] = max(1, served // tokens[group])
            left_bytes -= rows[group] * strides[group]
        waiting = waiting - small if small else set()
    # What does not make rows for all: one more for whoever serves the fewest tokens, the crumbs to the smallest rows.
    for group in sorted(range(len(strides)), key=lambda group: rows[group] * tokens[group]):
        if strides[group] <= left_bytes:
            rows[group] += 1
            left_bytes -= strides[group]
    smallest = strides.index(min(strides))
    rows[smallest] += left_bytes // strides[smallest]
    left_bytes %= strides[smallest]
    assert 0 <= left_bytes < min(strides), (left_bytes, strides)
    return rows
