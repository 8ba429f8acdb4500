"""Tiers by name, and the parsing of their options."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kvoffload.config.options import HOST_NAME, LaneOptions, TierOptions
from kvoffload.config.parse import WHERE, parse_dataclass
from kvoffload.errors import ConfigError
from kvoffload.registry import Registry
from kvoffload.tiers.base import Tier, TierContext

# The base class is abstract on purpose: only its subclasses are ever made.
TIERS: Registry[Tier] = Registry(
    "tier",
    Tier,  # type: ignore[type-abstract]
    {
        "fs": "kvoffload.tiers.fs.tier:FsTier",
        "memory": "kvoffload.tiers.memory:MemoryTier",
        "obj": "kvoffload.tiers.obj.tier:ObjTier",
    },
)
_LANE_NAMES = {field.name for field in dataclasses.fields(LaneOptions)}


def parse_tiers(raw: object) -> tuple[TierOptions, ...]:
    """Parse `secondary_tiers`: a list of mappings `{type, …options of the lane and of the tier}`.

    Raises:
        ConfigError: not such a list, an unknown type, or options that are not valid.
    """
    if not isinstance(raw, (list, tuple)):
        raise ConfigError(
            f"{WHERE}: secondary_tiers={raw!r} must be a list like [{{'type': 'fs', 'root_dir': '/kv'}}]"
        )
    tiers = tuple(_parse_tier(entry, f"{WHERE}: secondary_tiers[{index}]") for index, entry in enumerate(raw))
    _check_host_name(tiers)
    _check_distinct(tiers, "name", "give each tier a name of its own")
    _check_distinct(tiers, "root_dir", "give each tier a directory of its own")
    _check_distinct(tiers, "url", "give each tier a prefix of its own")
    return tiers


def _check_host_name(tiers: Sequence[TierOptions]) -> None:
    for index, tier in enumerate(tiers):
        if getattr(tier.own, "name", None) == HOST_NAME:
            raise ConfigError(
                f"{WHERE}: secondary_tiers[{index}] has the name {HOST_NAME!r}, which stands for host memory where requests "
                "name tiers; give it another name"
            )


def _check_distinct(tiers: Sequence[TierOptions], field: str, remedy: str) -> None:
    """Two tiers of one name would be taken for one; two of one directory would count its bytes twice."""
    first: dict[str, int] = {}
    for index, tier in enumerate(tiers):
        value = getattr(tier.own, field, None)
        if value is None:
            continue
        if field == "root_dir":
            value = os.path.realpath(os.path.expanduser(value))  # noqa: PTH111
        before = first.setdefault(value, index)
        if before != index:
            raise ConfigError(
                f"{WHERE}: secondary_tiers[{before}] and secondary_tiers[{index}] have the same {field} {value!r}; {remedy}"
            )


def _parse_tier(raw: object, where: str) -> TierOptions:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("type"), str):
        raise ConfigError(
            f"{where}: {raw!r} must be a mapping with a 'type'; valid types: {', '.join(TIERS.names())}"
        )
    kind, module_path = raw["type"], raw.get("module_path")
    if not isinstance(module_path, (str, type(None))):
        raise ConfigError(f"{where}: module_path={module_path!r} must be a text")
    options_type = TIERS.find(kind, module_path, where).options_type
    rest = {name: value for name, value in raw.items() if name not in ("type", "module_path")}
    return TierOptions(
        type=kind,
        module_path=module_path,
        lane=parse_dataclass(LaneOptions, _only(rest, _LANE_NAMES), where),
        own=parse_dataclass(options_type, _without(rest, _LANE_NAMES), where),
    )


def open_tier(options: TierOptions, context: TierContext) -> Tier:
    """Make the tier. Raises KvError."""
    return TIERS.resolve(options.type, options.module_path).open(options.own, context)


def _only(raw: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name in names}


def _without(raw: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in names}
