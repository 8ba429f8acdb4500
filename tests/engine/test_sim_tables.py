"""The simulator's block tables are the engine's: vLLM's own manager of blocks, driven beside them, gives and keeps the same."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request as VllmRequest

from kvoffload.sim.block_pool import NULL_BLOCK, BlockPool
from kvoffload.sim.requests import Request
from kvoffload.sim.setups import STATE, Local, Setup
from kvoffload.sim.splitting import tokens_of_step
from kvoffload.sim.tables import GroupTables
from kvoffload.types import RequestId

NUM_BLOCKS = 200
SETUPS = {
    "window": Setup(tokens_per_block=(4, 4), windows=(None, 6)),
    "windows of two sizes": Setup(tokens_per_block=(4, 8, 4), windows=(None, 16, 3)),
    "local stretches": Setup(tokens_per_block=(4, 4), windows=(None, Local(12))),
    "states": Setup(tokens_per_block=(4, 4), windows=(None, STATE)),
    "windows and states": Setup(tokens_per_block=(4, 4, 4), windows=(None, 9, STATE)),
}


def spec_of(setup: Setup, group: int) -> Any:
    tokens, window = setup.tokens_per_block[group], setup.windows[group]
    if window == STATE:
        return MambaSpec(
            block_size=tokens, shapes=((16,),), dtypes=(torch.float32,), mamba_cache_mode="align"
        )
    shape = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    if window is None:
        return FullAttentionSpec(block_size=tokens, **shape)
    if isinstance(window, Local):
        return ChunkedLocalAttentionSpec(block_size=tokens, attention_chunk_size=window.tokens, **shape)
    return SlidingWindowSpec(block_size=tokens, sliding_window=window, **shape)


def engine_of(setup: Setup) -> KVCacheManager:
    groups = [KVCacheGroupSpec([f"layer{g}"], spec_of(setup, g)) for g in range(len(setup.windows))]
    config = KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    return KVCacheManager(
        config,
        max_model_len=512,
        scheduler_block_size=setup.align_tokens,
        hash_block_size=min(setup.tokens_per_block),
    )


class Pair:
    """One request in vLLM's manager and in the simulator's tables."""

    def __init__(self, setup: Setup, engine: KVCacheManager, tokens: list[int]) -> None:
        self.setup, self.engine = setup, engine
        hasher = get_request_block_hasher(min(setup.tokens_per_block), sha256)
        self.theirs = VllmRequest("r", tokens, SamplingParams(max_tokens=50), None, block_hasher=hasher)
        self.pool = BlockPool(NUM_BLOCKS)
        self.groups = [GroupTables(self.pool, setup, group) for group in range(len(setup.windows))]
        self.ours = Request(
            RequestId("r"), tuple(tokens), len(tokens), len(tokens), [], [[] for _ in self.groups]
        )

    def load(self, boundary: int) -> None:
        self.engine.allocate_slots(
            self.theirs, 0, num_external_computed_tokens=boundary, delay_cache_blocks=True
        )
        for group, table in zip(self.groups, self.ours.tables, strict=True):
            group.adopt(table, [], boundary)
            group.grow(table, boundary)
        self._advance(boundary)

    def step(self, count: int, in_flight: int) -> None:
        self.theirs.num_in_flight_tokens = in_flight
        assert self.engine.allocate_slots(self.theirs, count) is not None
        for group, table in zip(self.groups, self.ours.tables, strict=True):
            group.give_away(table, self.ours.computed - in_flight)
            group.grow(table, self.ours.computed + count)
        self._advance(count)

    def sample(self) -> None:
        self.theirs.append_output_token_ids(7)
        self.ours.known += 1

    def cache(self) -> None:
        """As the simulator's scheduler does; vLLM's manager has done so when it gave blocks for a step."""
        for group, per_block in enumerate(self.setup.tokens_per_block):
            for index, block in enumerate(self.ours.tables[group][: self.ours.computed // per_block]):
                if block != NULL_BLOCK:
                    self.pool.remember(block, group, b"%d" % index)

    def hit(self, tokens: int, shared: int) -> int:
        """How much of a sequence of so many tokens, whose first ones are shared with this one, the simulator finds."""
        end = (tokens - 1) // self.setup.align_tokens * self.setup.align_tokens
        for boundary in range(end, 0, -self.setup.align_tokens):
            tables = [
                group.hit(boundary, partial(self._find, number, shared))
                for number, group in enumerate(self.groups)
            ]
            if None not in tables:
                return boundary
        return 0

    def _find(self, group: int, shared: int, index: int) -> int | None:
        if (index + 1) * self.setup.tokens_per_block[group] > shared:
            return None
        return self.pool.find(group, b"%d" % index)

    def _advance(self, count: int) -> None:
        self.theirs.num_computed_tokens += count
        self.ours.computed += count

    def compare(self) -> None:
        theirs = self.engine.get_block_ids("r")
        shapes = [
            [[block != 0 for block in table] for table in tables] for tables in (theirs, self.ours.tables)
        ]
        assert shapes[0] == shapes[1]
        held = NUM_BLOCKS - 1 - self.engine.block_pool.get_num_free_blocks()
        assert held == NUM_BLOCKS - 1 - len(self.pool.free)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("name", SETUPS)
def test_tables_grow_and_shrink_as_those_of_the_engine(name: str, lag: int) -> None:
    init_none_hash(sha256)
    setup = SETUPS[name]
    for seed in range(40):
        rng = random.Random(seed)
        pair = Pair(setup, engine_of(setup), [rng.randrange(50) for _ in range(rng.randint(9, 70))])
        units = (pair.ours.known - 1) // setup.align_tokens
        if units and rng.random() < 0.5:
            pair.load(rng.randint(1, units) * setup.align_tokens)
            pair.compare()
        last = 0
        for _ in range(40):
            wanted = min(rng.choice((1, 5, 8, 30)), pair.ours.known - pair.ours.computed)
            count = tokens_of_step(setup, pair.ours, pair.ours.computed, wanted)
            if not count:
                continue
            pair.step(count, last if lag else 0)
            pair.compare()
            last = count
            if pair.ours.computed == pair.ours.known:
                pair.sample()


@pytest.mark.parametrize("name", SETUPS)
def test_a_prefix_hit_ends_where_the_engines_ends(name: str) -> None:
    init_none_hash(sha256)
    setup = SETUPS[name]
    hits = []
    for seed in range(60):
        rng = random.Random(seed)
        tokens = [rng.randrange(50) for _ in range(rng.randint(9, 70))]
        pair = Pair(setup, engine_of(setup), tokens)
        while pair.ours.computed < rng.randint(1, pair.ours.known):
            wanted = min(rng.choice((5, 8, 30)), pair.ours.known - pair.ours.computed)
            pair.step(tokens_of_step(setup, pair.ours, pair.ours.computed, wanted) or wanted, 0)
            pair.engine.new_step_starts()
            pair.cache()
        shared = rng.randint(1, len(tokens))
        other = tokens[:shared] + [99] * rng.randint(1, 9)
        hasher = get_request_block_hasher(min(setup.tokens_per_block), sha256)
        second = VllmRequest("s", other, SamplingParams(max_tokens=5), None, block_hasher=hasher)
        _, found, *_ = pair.engine.get_computed_blocks(second)
        assert pair.hit(len(other), shared) == found, seed
        hits.append(found)
    assert sum(hit > 0 for hit in hits) > 10


@pytest.mark.parametrize("step_tokens", [None, 3, 4, 9])
def test_steps_end_where_those_of_the_engine_end(step_tokens: int | None) -> None:
    setup = Setup(tokens_per_block=(4, 4), windows=(None, STATE), step_tokens=step_tokens)
    scheduler = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=4),
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        block_size=4,
        hash_block_size=4,
        max_num_scheduled_tokens=step_tokens or 8192,
        use_eagle_block_drop=False,
        mamba_has_prefill_checkpoint_blocks=False,
        mamba_partial_cache_hit=False,
        mamba_shared_prefix_checkpoint=False,
    )
    rng = random.Random(0)
    for _ in range(2000):
        known = rng.randint(1, 30)
        prompt, start = rng.randint(1, known), rng.randrange(known)
        count = min(rng.choice((1, 2, 3, 5, 9, 30)), known - start, step_tokens or 30)
        theirs = SimpleNamespace(
            num_computed_tokens=start, num_prompt_tokens=prompt, num_tokens=known, shared_prefix_boundary=0
        )
        ours = Request(RequestId("r"), (0,) * known, prompt, known, [], [])
        assert tokens_of_step(setup, ours, start, count) == Scheduler._mamba_block_aligned_split(
            scheduler, theirs, count
        )
