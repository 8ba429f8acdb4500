"""Geometries and options that are simulated, each under a name. Data only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

STATE = 0
"""As a window: the group keeps recurrent states."""


@dataclass(frozen=True)
class Local:
    """As a window: chunked-local attention over stretches of so many tokens."""

    tokens: int


_ENGINE_GROUP_IDS = (3, 7, 8, 12)
"""The engine's own numbers of the groups: not their indices."""


@dataclass(frozen=True)
class Setup:
    """One geometry and one set of options."""

    tokens_per_hash: int = 1
    tokens_per_block: tuple[int, ...] = (2,)
    """Of every group."""
    windows: tuple[int | Local | None, ...] = ()
    """Of every group: so many tokens does a token see, itself included; None: all; or STATE, or Local. Not given: all of
    them all."""
    unit_tokens: int = 1
    """The engine's own hits are also multiples of this: of groups that are not offloaded."""
    step_tokens: int | None = None
    """The engine runs at most so many tokens in a step."""
    blocks_per_chunk: int = 1
    world_size: int = 1
    num_slots: int = 6
    """Of every group."""
    num_blocks: int = 40
    max_tokens: int = 24
    """Of a request, its answer included."""
    shortest_prompt: int = 1
    prefix_caching: bool = True
    prompt_only: bool = True
    store_threshold: int = 0
    async_scheduling: bool = False
    below: tuple[str, ...] = ()
    """Kinds of the tiers below the host, the fastest first: see below.py."""

    @property
    def align_tokens(self) -> int:
        """Computed tokens of the device's prefix cache and of loads are whole multiples of this."""
        return math.lcm(self.unit_tokens, *self.tokens_per_block)

    @property
    def is_sparse(self) -> bool:
        """Some group keeps only what is near to the last token."""
        return any(window is not None for window in self.windows)

    @property
    def state_tokens(self) -> int | None:
        """Tokens of a block with a recurrent state, None if there are no states."""
        return next((self.tokens_per_block[i] for i, w in enumerate(self.windows) if w == STATE), None)

    def is_state(self, group: int) -> bool:
        """Whether the group keeps recurrent states."""
        return bool(self.windows) and self.windows[group] == STATE

    def reach_of(self, group: int) -> int | None:
        """How many tokens before the next one the group looks at, None: all, or those of its stretch."""
        window = self.windows[group] if self.windows else None
        if window is None or isinstance(window, Local):
            return None
        return 1 if window == STATE else window - 1

    def local_of(self, group: int) -> int | None:
        """Tokens of a stretch of chunked-local attention, None if it is another kind."""
        window = self.windows[group] if self.windows else None
        return window.tokens if isinstance(window, Local) else None

    def first_seen(self, group: int, tokens: int) -> int:
        """The first token that one behind so many looks at."""
        local, reach = self.local_of(group), self.reach_of(group)
        if local is not None:
            return tokens // local * local
        return 0 if reach is None else max(0, tokens - reach)

    @property
    def group_ids(self) -> tuple[int, ...]:
        """The groups' numbers in keys. A directory takes them for indices of its row sizes."""
        count = len(self.tokens_per_block)
        return tuple(range(count)) if "fs" in self.below else _ENGINE_GROUP_IDS[:count]

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
    "long prompts in few blocks": Setup(num_blocks=13, num_slots=24, shortest_prompt=18),
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
    "windows and states over a tier": Setup(
        below=("double",),
        tokens_per_block=(2, 4, 2),
        windows=(None, 6, STATE),
        num_blocks=26,
        num_slots=7,
        prompt_only=False,
    ),
}
"""Over doubles of tiers that do as they are told: for state machines that shrink what fails."""

GROUP_SETUPS: Mapping[str, Setup] = {
    "window": Setup(
        tokens_per_block=(2, 2), windows=(None, 6), num_blocks=28, num_slots=9, prompt_only=False
    ),
    "windows of two sizes": Setup(
        tokens_per_block=(2, 4, 2), windows=(None, 8, 3), world_size=2, num_blocks=34, num_slots=9
    ),
    "window on a coarser grid": Setup(
        tokens_per_block=(2, 2), windows=(None, 5), unit_tokens=8, num_blocks=28, num_slots=12
    ),
    "window, long prompts in few blocks": Setup(
        tokens_per_block=(2, 2), windows=(None, 4), num_blocks=26, num_slots=24, shortest_prompt=18
    ),
    "states": Setup(
        tokens_per_block=(2, 2), windows=(None, STATE), num_blocks=20, num_slots=9, prompt_only=False
    ),
    "wide states in small steps": Setup(
        tokens_per_hash=4,
        tokens_per_block=(4, 4),
        windows=(None, STATE),
        step_tokens=3,
        max_tokens=28,
        num_blocks=14,
        prompt_only=False,
    ),
    "windows and states": Setup(
        tokens_per_block=(2, 2, 2), windows=(None, 5, STATE), num_blocks=32, num_slots=8, world_size=2
    ),
    "windows and states, asynchronous": Setup(
        tokens_per_block=(2, 2, 2),
        windows=(None, 4, STATE),
        num_blocks=32,
        num_slots=9,
        prompt_only=False,
        async_scheduling=True,
    ),
    "local stretches": Setup(
        tokens_per_block=(2, 2), windows=(None, Local(6)), num_blocks=28, num_slots=9, prompt_only=False
    ),
    "local stretches, windows and states, asynchronous": Setup(
        tokens_per_block=(2, 4, 2, 2),
        windows=(None, Local(8), 5, STATE),
        num_blocks=40,
        num_slots=9,
        async_scheduling=True,
    ),
    "few rows for windows and states": Setup(
        tokens_per_block=(2, 4, 2), windows=(None, 6, STATE), num_blocks=26, num_slots=4, store_threshold=2
    ),
}
"""Groups that keep only what is near to the last token, over the host tier alone."""

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
    "chunk files, windows and states": Setup(
        below=("chunks",),
        tokens_per_block=(2, 2, 2),
        windows=(None, 5, STATE),
        num_blocks=32,
        num_slots=7,
        prompt_only=False,
        async_scheduling=True,
    ),
    "directory, windows and states": Setup(
        below=("fs",), tokens_per_block=(2, 4, 2), windows=(None, 6, STATE), num_blocks=30, num_slots=7
    ),
}
"""Over the real logic of tiers, on media that survive the engine."""

SETUPS: Mapping[str, Setup] = {**HOST_SETUPS, **GROUP_SETUPS, **TIER_SETUPS}
"""What `kvoffload sim` runs."""
