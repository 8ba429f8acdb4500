"""The obj tier passes the suite that every tier passes, on the client's own stores in memory and in a directory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from obj_support import open_tier, url_of

from kvoffload.layout.chunk_format import file_bytes
from kvoffload.layout.partial import RowShape
from kvoffload.testing.ranged_load_tests import RangedLoadTests
from kvoffload.testing.tier_tests import TierTests
from kvoffload.tiers.base import Tier
from kvoffload.tiers.obj.tier import ObjTier


class ObjTierTests(TierTests, RangedLoadTests):
    """Makes obj tiers, each in a place of its own."""

    options: ClassVar[dict[str, Any]] = {}
    seeds = range(2)
    range_seeds = range(3)

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.numbers = itertools.count()

    def new_url(self) -> str:
        return f"memory://{self.tmp_path.name.replace('_', '-')}-{next(self.numbers)}"

    def open(self, url: str, shapes: Sequence[RowShape] = (), **more: Any) -> ObjTier:
        return open_tier(url, shapes or self.payload_bytes, **{**self.options, **more})

    def make(self) -> Tier:
        return self.open(self.new_url())

    def make_small(self, chunks: int) -> Tier | None:
        return self.open(self.new_url(), max_bytes=chunks * file_bytes(self.payload_bytes[0]))

    def reopen(self, tier: Tier) -> Tier | None:
        assert isinstance(tier, ObjTier)
        return self.open(url_of(tier))

    def make_shaped(self, shapes: Sequence[RowShape], beside: Tier | None = None) -> Tier:
        assert beside is None or isinstance(beside, ObjTier)
        return self.open(self.new_url() if beside is None else url_of(beside), shapes)


class TestInMemory(ObjTierTests):
    seeds = range(6)
    evicts_by_recency = False  # chunks that were stored together are packed, and go together


class TestInMemoryWithoutPacks(ObjTierTests):
    options: ClassVar[dict[str, Any]] = {"pack_below_bytes": 0, "range_gap_bytes": 0}


class TestInMemoryWithSmallPacks(ObjTierTests):
    options: ClassVar[dict[str, Any]] = {
        "pack_bytes": 20_000,
        "read_span_bytes": 9_000,
        "range_gap_bytes": 4096,
    }
    evicts_by_recency = False


class TestInADirectory(ObjTierTests):
    evicts_by_recency = False
    seeds = range(2)

    def new_url(self) -> str:
        return f"file://{self.tmp_path}/{next(self.numbers)}"
