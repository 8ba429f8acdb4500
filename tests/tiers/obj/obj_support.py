"""What the tests of the obj tier share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvoffload.keys.fingerprint import Namespace
from kvoffload.testing.tier_driver import TierDriver
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.tier import ObjTier

QUICK: dict[str, Any] = {
    "threads": 4,
    "max_pending_jobs": 40,
    "poll_interval_s": 0.05,
    "reconcile_interval_s": 1000.0,
}


def make_namespace(model: str = "org/a model") -> Namespace:
    fields = {"model": model, "layout_family": "direct", "layout_version": 1}
    return Namespace(model, json.dumps(fields, sort_keys=True, separators=(",", ":")))


def open_tier(url: str, payload_bytes: Sequence[int] = (4096, 12288), **options: Any) -> ObjTier:
    return ObjTier(ObjTierConfig(url=url, **{**QUICK, **options}), make_namespace(), payload_bytes)


def url_of(tier: ObjTier) -> str:
    return tier._config.url


def drive(tier: ObjTier, payload_bytes: Sequence[int] = (4096, 12288)) -> TierDriver:
    return TierDriver(tier, payload_bytes, lambda tier: tier.drain(0.02), patience_s=30.0)
