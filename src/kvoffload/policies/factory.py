"""Eviction policies by name."""

from __future__ import annotations

from kvoffload.policies.base import EvictionPolicy
from kvoffload.registry import Registry

# The base class is abstract on purpose: only its subclasses are ever made.
EVICTION_POLICIES: Registry[EvictionPolicy] = Registry(
    "eviction policy",
    EvictionPolicy,  # type: ignore[type-abstract]
    {"lru": "kvoffload.policies.lru:LRUPolicy"},
)
