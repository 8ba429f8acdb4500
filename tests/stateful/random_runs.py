"""Seeded random runs of the engine model, and the setups that all tests of this folder use."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable

from copy_doubles import FaultyCopier, StepWorker
from engine_memory import Memory, Setup
from engine_model import EngineModel

SEED_VARIABLE = "KVOFFLOAD_TEST_SEED"
DRAIN_STEPS = 300

SETUPS = {
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
    "a tier below": Setup(num_tiers=1, num_blocks=16, num_slots=7),
    "two tiers below, two workers": Setup(
        num_tiers=2, world_size=2, blocks_per_chunk=2, num_blocks=16, num_slots=4, async_scheduling=True
    ),
    "two groups over a tier": Setup(num_tiers=1, tokens_per_block=(2, 2), num_blocks=28, num_slots=6),
    "one slot": Setup(num_slots=1, blocks_per_chunk=2, num_blocks=15),
}


def make_model(setup: Setup) -> tuple[EngineModel, list[StepWorker]]:
    memory = Memory(setup)
    workers = [StepWorker(FaultyCopier(memory.bind(rank))) for rank in range(setup.world_size)]
    return EngineModel(setup, memory, workers), workers


def document(number: int, length: int) -> list[int]:
    """Token `i` of a document depends on its number only from some place on: documents share their beginnings."""
    return [i % 5 if i < 4 * number else 10 * (number + 1) + i % 3 for i in range(length)]


def drain(model: EngineModel, workers: Iterable[StepWorker]) -> None:
    """Let everything end: no new requests, copies succeed. Fails if it does not end."""
    for _ in range(DRAIN_STEPS):
        for worker in workers:
            worker.flush_times_out = False
            while worker.run(0):
                pass
        for tier in model.lower:
            tier.refuses = tier.unsure = False
            while tier.run(0):
                pass
        model.clock.advance(0.5)
        model.step(16)
        model.check()
        if model.is_idle():
            model.check_drained()
            return
    raise AssertionError(f"HANG: {model.requests} after {DRAIN_STEPS} steps")


class RandomRun:
    """One random life of an engine.

    Args:
        setup: Geometry and options.
        seed: Decides everything.
    """

    def __init__(self, setup: Setup, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model, self.workers = make_model(setup)

    def run(self, actions: int) -> Counter[str]:
        for _ in range(actions):
            self._act()
            self.model.check()
        drain(self.model, self.workers)
        return self.model.seen

    def _act(self) -> None:
        rng, model = self.rng, self.model
        dice = rng.random()
        if dice < 0.18:
            if len(model.requests) < 8:
                self._add()
        elif dice < 0.52:
            model.step(
                rng.choice((1, 3, 8, 24)),
                accept=rng.choice((1, 99, 99, 99)),
                vanish=rng.random() < 0.04,
                scratch=rng.random() < 0.1,
            )
        elif dice < 0.90:
            worker = rng.choice(self.workers)
            worker.flush_times_out = rng.random() < 0.05
            for _ in range(rng.choice((1, 1, 2, 4))):
                worker.run(rng.randrange(8), fail_mask=rng.choice((0, 0, 0, 0, 0, 0, 1, 6)))
            for tier in model.lower:
                tier.refuses, tier.unsure = rng.random() < 0.1, rng.random() < 0.1
                for _ in range(rng.choice((0, 1, 3))):
                    tier.run(rng.randrange(8), fail_mask=rng.choice((0, 0, 0, 0, 1, 2)))
        elif dice < 0.95:
            if model.requests:
                model.abort(rng.choice(list(model.requests.values())))
        elif dice < 0.98:
            if model.running:
                model.preempt(rng.choice(model.running))
        elif dice < 0.99:
            model.reset(new_weights=rng.random() < 0.5)
        else:
            model.clock.advance(rng.choice((0.1, 3.0, 6.0, 61.0)))

    def _add(self) -> None:
        rng, setup = self.rng, self.model.setup
        answer = document(9, rng.randint(1, 6))
        prompt = document(rng.randrange(4), rng.randint(1, setup.max_tokens - len(answer)))
        limit = rng.choice((None, None, None, None, 0, setup.chunk_tokens))
        self.model.add(
            prompt,
            answer,
            max_load_tokens=limit if rng.random() < 0.5 else None,
            max_offload_tokens=limit if rng.random() < 0.5 else None,
            skip_load=rng.random() < 0.05,
        )


def seeds(count: int) -> list[int]:
    """The first `count` seeds, or the one that KVOFFLOAD_TEST_SEED asks for."""
    asked = os.environ.get(SEED_VARIABLE)
    return list(range(count)) if asked is None else [int(asked)]


def run_seeds(name: str, count: int, actions: int, node: str) -> Counter[str]:
    """Run a setup with many seeds; a failure says how to replay it."""
    seen: Counter[str] = Counter()
    for seed in seeds(count):
        try:
            seen += RandomRun(SETUPS[name], seed).run(actions)
        except Exception as error:
            replay = f"{SEED_VARIABLE}={seed} python -m pytest {node!r}"
            raise AssertionError(f"setup {name!r}, seed {seed}: {error!r}; replay: {replay}") from error
    return seen
