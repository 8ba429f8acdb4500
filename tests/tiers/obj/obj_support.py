"""What the tests of the obj tier share."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from kvoffload.keys.fingerprint import Namespace
from kvoffload.layout.partial import RowShape
from kvoffload.testing.tier_driver import TierDriver
from kvoffload.tiers.obj.client import ObjectClient, open_client
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.tier import ObjTier

_places = itertools.count()
QUICK: dict[str, Any] = {
    "threads": 4,
    "max_pending_jobs": 40,
    "poll_interval_s": 0.05,
    "reconcile_interval_s": 1000.0,
}


def make_namespace(model: str = "org/a model") -> Namespace:
    fields = {"model": model, "layout_family": "direct", "layout_version": 1}
    return Namespace(model, json.dumps(fields, sort_keys=True, separators=(",", ":")))


def open_tier(url: str, rows: Sequence[int | RowShape] = (4096, 12288), **options: Any) -> ObjTier:
    return ObjTier(ObjTierConfig(url=url, **{**QUICK, **options}), make_namespace(), rows)


def url_of(tier: ObjTier) -> str:
    return tier._config.url


def drive(tier: Any, rows: Sequence[int | RowShape] = (4096, 12288)) -> TierDriver:
    shapes = [RowShape(row) if isinstance(row, int) else row for row in rows]
    sizes = [shape.row_bytes for shape in shapes]
    return TierDriver(tier, sizes, lambda tier: tier.drain(0.02), 30.0, shapes)


class MemoryPlace:
    """A store in memory of its own, and engines on it."""

    def __init__(self) -> None:
        self.url = f"memory://place-{next(_places)}"
        self.engines: list[TierDriver] = []

    @property
    def behind(self) -> ObjectClient:
        """What is done behind everybody's back."""
        return open_client(ObjTierConfig(url=self.url))

    def close(self) -> None:
        for driver in self.engines:
            driver.tier.shutdown()
