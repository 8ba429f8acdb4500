"""Eviction policies by name."""

from __future__ import annotations

from kvoffload.policies.base import EvictionPolicy
from kvoffload.registry import Registry

# The base class is abstract on purpose: only its subclasses are ever made.
EVICTION_POLICIES: Registry[EvictionPolicy] = Registry(
    "eviction policy",
    EvictionPolicy,  # type: ignore[type-abstract]
    {
        "fifo": "kvoffload.policies.fifo:FIFOPolicy",
        "lru": "kvoffload.policies.lru:LRUPolicy",
        "lfu": "kvoffload.policies.lfu:LFUPolicy",
        "arc": "kvoffload.policies.arc:ARCPolicy",
        "s3fifo": "kvoffload.policies.s3fifo:S3FIFOPolicy",
        "sieve": "kvoffload.policies.sieve:SIEVEPolicy",
        "wtinylfu": "kvoffload.policies.wtinylfu:WTinyLFUPolicy",
        "gdsf": "kvoffload.policies.gdsf:GDSFPolicy",
        "echo": "kvoffload.policies.echo:EchoPolicy",
        "prefix": "kvoffload.policies.prefix:PrefixPolicy",
    },
)
