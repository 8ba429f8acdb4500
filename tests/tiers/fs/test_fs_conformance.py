"""The fs tier passes the suite that every tier passes, in every way in which it can be set up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fs_support import make_namespace

from kvoffload.clock import MonotonicClock, WallClock
from kvoffload.layout.chunk_format import file_bytes
from kvoffload.layout.partial import RowShape
from kvoffload.testing.ranged_load_tests import RangedLoadTests
from kvoffload.testing.tier_tests import TierTests
from kvoffload.tiers.base import Tier
from kvoffload.tiers.fs.options import DirectIo, Durability, FsTierConfig
from kvoffload.tiers.fs.tier import FsTier


class FsTierTests(TierTests, RangedLoadTests):
    """Makes fs tiers, each in a directory of its own."""

    options: ClassVar[dict[str, Any]] = {}
    seeds = range(4)
    range_seeds = range(4)

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.numbers = itertools.count()

    def _open(self, root: Path, shapes: Sequence[RowShape] = (), **more: Any) -> FsTier:
        options = {"threads": 4, "min_free_bytes": 0, "max_pending_jobs": 40, "negative_ttl_s": 0.05}
        config = FsTierConfig(root_dir=str(root), **{**options, **self.options, **more})
        rows = shapes or self.payload_bytes
        return FsTier(config, make_namespace(), rows, clock=MonotonicClock(), wall_clock=WallClock())

    def make(self) -> Tier:
        return self._open(self.tmp_path / str(next(self.numbers)))

    def make_small(self, chunks: int) -> Tier | None:
        # Directories and the record count, too; they go with their last chunk.
        per_chunk = file_bytes(self.payload_bytes[0]) + 2 * 4096
        return self._open(self.tmp_path / str(next(self.numbers)), max_bytes=24_576 + chunks * per_chunk)

    def reopen(self, tier: Tier) -> Tier | None:
        assert isinstance(tier, FsTier)
        return self._open(Path(tier._around.place.root))

    def make_shaped(self, shapes: Sequence[RowShape], beside: Tier | None = None) -> Tier:
        if beside is None:
            return self._open(self.tmp_path / str(next(self.numbers)), shapes)
        assert isinstance(beside, FsTier)
        return self._open(Path(beside._around.place.root), shapes)


class TestFsTier(FsTierTests):
    pass


class TestFsTierWithACap(FsTierTests):
    options: ClassVar[dict[str, Any]] = {"max_bytes": 50_000_000}


class TestFsTierThroughThePageCache(FsTierTests):
    options: ClassVar[dict[str, Any]] = {"direct_io": DirectIo.OFF, "threads": 2}
    seeds = range(2)


class TestFsTierWithFullDurability(FsTierTests):
    options: ClassVar[dict[str, Any]] = {"durability": Durability.FULL}
    seeds = range(2)
