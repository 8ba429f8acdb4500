"""The tests of a tier that loads parts of rows: for those that claim it, beside `TierTests`.

class TestMyTier(TierTests, RangedLoadTests):
    def make_shaped(self, shapes, beside=None):
        return MyTier(…)                 # for rows of these shapes; on the storage of `beside` if that is given
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.partial import ByteRanges, RowShape
from kvoffload.testing.tier_driver import TierDriver, make_key, make_keys, same
from kvoffload.tiers.base import Outcome, Tier
from kvoffload.types import LookupResult

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
_PIECE_BYTES = 4096
_PIECES = 12


class RangedLoadTests(ABC):
    """Subclass it beside TierTests, give `make_shaped`, and run it."""

    range_seeds: Iterable[int] = range(10)
    """Random ranges; a failure names its seed."""
    settle: Callable[[Tier], object]
    patience_s: float

    @abstractmethod
    def make_shaped(self, shapes: Sequence[RowShape], beside: Tier | None = None) -> Tier:
        """A tier for rows of these shapes, by group: a new and empty one, or another one on the storage of `beside`."""

    @contextmanager
    def _two(self, ranges: ByteRanges, pieces: int = _PIECES) -> Iterator[tuple[TierDriver, TierDriver]]:
        """An engine with whole rows, and one that needs these ranges of them."""
        size = pieces * _PIECE_BYTES
        whole, part = (RowShape(size, _PIECE_BYTES, wanted) for wanted in (None, ranges))
        writer = self.make_shaped([whole])
        reader = self.make_shaped([part], writer)
        drivers = [
            TierDriver(tier, (size,), self.settle, self.patience_s, (shape,))
            for tier, shape in ((writer, whole), (reader, part))
        ]
        try:
            yield drivers[0], drivers[1]
            for driver in drivers:
                driver.finish()
                driver.check()
        finally:
            for driver in drivers:
                driver.tier.shutdown()

    def test_any_part_of_a_row_is_loaded_with_nothing_false_beside_it(self) -> None:
        """The driver compares: the right bytes in the ranges; elsewhere the right ones, or the row as it was."""
        for seed in self.range_seeds:
            rng = random.Random(seed)  # noqa: S311
            ranges = random_ranges(rng, _PIECES * _PIECE_BYTES)
            keys = make_keys(5)
            try:
                with self._two(ranges) as (writer, reader):
                    same(writer.store(keys), [DONE] * 5)
                    same(reader.load([*keys, make_key(99)]), [DONE] * 5 + [MISSING])
                    same(reader.lookup(keys), [LookupResult.HIT] * 5)
                    same(writer.load(keys), [DONE] * 5)
            except Exception as error:
                raise AssertionError(f"seed {seed}, ranges {ranges}: {error!r}") from error

    def test_a_part_of_a_row_moves_less_than_all_of_it(self) -> None:
        """That is what it is for; pieces may be larger than what is asked for."""
        keys = make_keys(4)
        with self._two(((3 * _PIECE_BYTES, 2 * _PIECE_BYTES),)) as (writer, reader):
            same(writer.store(keys), [DONE] * 4)
            same(reader.load(keys), [DONE] * 4)
            (report,) = [job.report for job in reader.ended]
            assert report is not None
            size = _PIECES * _PIECE_BYTES
            assert report.moved_bytes <= 4 * size // 2, f"{report.moved_bytes} bytes of {4 * size}"

    def test_an_engine_with_a_part_of_each_row_stores_nothing(self) -> None:
        """What is elsewhere in its rows is not the chunk's; once stored, it would be served to everybody."""
        keys: list[OffloadKey] = make_keys(6)
        with self._two(((0, 2 * _PIECE_BYTES),)) as (writer, reader):
            same(writer.store(keys[:2]), [DONE] * 2)
            found = reader.store(keys)
            same(found[2:], [REJECTED] * 4)
            assert set(found[:2]) <= {DONE, REJECTED}, found
            same(writer.load(keys), [DONE] * 2 + [MISSING] * 4)


def random_ranges(rng: random.Random, size_bytes: int) -> ByteRanges:
    """One to six ranges of a row, small and large, neighbours allowed."""
    count = 2 * rng.randint(1, 6)
    bounds = sorted(rng.sample(range(size_bytes + 1), count))
    if rng.random() < 0.3:
        bounds[0], bounds[-1] = 0, size_bytes
    return tuple((start, end - start) for start, end in zip(bounds[::2], bounds[1::2], strict=True))
