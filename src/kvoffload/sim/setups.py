"""Geometries and options that are simulated, each under a name. Data only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_ENGINE_GROUP_IDS = (3, 7)
"""The engine's own numbers of the groups: not their indices."""


@dataclass(frozen=True)
class Setup:
    """One geometry and one set of options."""

    tokens_per_hash: int = 1
    tokens_per_block: tuple[int, ...] = (2,)
    """Of every group."""
    blocks_per_chunk: int = 1
    world_size: int = 1
    num_slots: int = 6
    """Of every group."""
    num_blocks: int = 40
    max_tokens: int = 24
    prefix_caching: bool = True
    prompt_only: bool = True
    store_threshold: int = 0
    async_scheduling: bool = False
    below: tuple[str, ...] = ()
    """Kinds of the tiers below the host, the fastest first: see below.py."""

    @property
    def align_tokens(self) -> int:
        """Computed tokens of the device's prefix cache and of loads are whole multiples of this."""
        return math.lcm(*self.tokens_per_block)

    @property
    def group_ids(self) -> tuple[int, ...]:
        """The groups' numbers in keys. A directory takes them for indices of its row sizes."""
        return (0, 1) if "fs" in self.below else _ENGINE_GROUP_IDS

    @property
    def chunk_tokens(self) -> int:
        """Tokens of the widest group's chunk."""
        return max(self.tokens_per_block) * self.blocks_per_chunk


HOST_SETUPS: Mapping[str, Setup] = {
    "one block a chunk": Setup(num_blocks=16, num_slots=10),
    "no prefix cache": Setup(prefix_caching=False, num_slots=5, num_blocks=30),
    "two workers": Setup(world_size=2, blocks_per_chunk=2, num_blocks=16),
    "wide blocks": Setup(
        tokens_per_hash=2, tokens_per_block=(4,), blocks_per_chunk=2, max_tokens=32, num_blocks=11
    ),
    "three blocks a chunk": Setup(blocks_per_chunk=3, prompt_only=False, num_blocks=17),
    "two groups": Setup(tokens_per_block=(2, 2), blocks_per_chunk=2, world_size=2, num_blocks=30),
    "two unequal groups": Setup(tokens_per_block=(2, 4), num_blocks=24, num_slots=10),
    "two odd groups": Setup(tokens_per_block=(2, 3), num_blocks=26, num_slots=10),
    "answers too": Setup(prompt_only=False, async_scheduling=True, num_blocks=16),
    "second touch": Setup(store_threshold=2, blocks_per_chunk=2, num_blocks=15),
    "asynchronous": Setup(
        async_scheduling=True, world_size=2, blocks_per_chunk=2, prompt_only=False, num_blocks=17
    ),
    "one slot": Setup(num_slots=1, blocks_per_chunk=2, num_blocks=15),
}
"""The host tier alone."""

DOUBLE_SETUPS: Mapping[str, Setup] = {
    "a tier below": Setup(below=("double",), num_blocks=16, num_slots=7),
    "two tiers below, two workers": Setup(
        below=("double", "double"),
        world_size=2,
        blocks_per_chunk=2,
        num_blocks=16,
        num_slots=4,
        async_scheduling=True,
    ),
    "two groups over a tier": Setup(below=("double",), tokens_per_block=(2, 2), num_blocks=28, num_slots=6),
}
"""Over doubles of tiers that do as they are told: for state machines that shrink what fails."""

TIER_SETUPS: Mapping[str, Setup] = {
    "chunk files": Setup(below=("chunks",), num_blocks=16, num_slots=7),
    "sealed rows": Setup(below=("sealed",), num_blocks=16, num_slots=6, prompt_only=False),
    "directory": Setup(below=("fs",), num_blocks=16, num_slots=7),
    "directory, two workers": Setup(
        below=("fs",), world_size=2, blocks_per_chunk=2, num_blocks=16, num_slots=4, async_scheduling=True
    ),
    "directory, two groups": Setup(below=("fs",), tokens_per_block=(2, 4), num_blocks=24, num_slots=6),
    "chunk files over a directory": Setup(
        below=("chunks", "fs"), num_blocks=16, num_slots=5, prompt_only=False, async_scheduling=True
    ),
}
"""Over the real logic of tiers, on media that survive the engine."""

SETUPS: Mapping[str, Setup] = {**HOST_SETUPS, **TIER_SETUPS}
"""What `kvoffload sim` runs."""
