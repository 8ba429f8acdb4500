"""Seeded random runs of the engine model over doubles, which the tests of this folder use.

What the simulator (kvoffload.sim) runs is not run here once more: here are doubles that do as they are told, so that a
state machine can shrink what fails.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable

from kvoffload.manager.wishes import Priority, Stay
from kvoffload.metrics import catalog as m
from kvoffload.sim import checks
from kvoffload.sim.copies import FaultyCopier, StepWorker
from kvoffload.sim.double import StepTier
from kvoffload.sim.engine_model import EngineModel
from kvoffload.sim.memory import Memory
from kvoffload.sim.patterns import document
from kvoffload.sim.requests import StepOptions, Wishes
from kvoffload.sim.setups import DOUBLE_SETUPS, GROUP_SETUPS, HOST_SETUPS, Setup
from kvoffload.sim.world import World

SEED_VARIABLE = "KVOFFLOAD_TEST_SEED"
DRAIN_STEPS = 300
SETUPS = {**HOST_SETUPS, **GROUP_SETUPS, **DOUBLE_SETUPS}


class DoubledModel(EngineModel):
    """An engine model over doubles."""

    def __init__(self, setup: Setup, memory: Memory, workers: list) -> None:
        self.lower = [StepTier(f"tier{number}") for number in range(len(setup.below))]
        super().__init__(World(setup), memory, workers, self.lower)
        self.clock = self.world.clock
        self.seen = self.world.seen

    def check(self) -> None:
        super().check()
        checks.check_counters(self)
        for tier in self.lower:
            for key, row in tier.rows.items():
                group, tokens, chunk = self.world.meanings[key]
                right = self.memory.chunk_row(group, tokens, chunk, self.world.weights).tobytes()
                assert row[: len(right)] == right, f"WRONG KV in {tier.name}, group {group}, chunk {chunk}"

    def is_idle(self) -> bool:
        return not any(tier.jobs for tier in self.lower) and super().is_idle()


def make_model(setup: Setup) -> tuple[DoubledModel, list[StepWorker]]:
    memory = Memory(setup)
    workers = [StepWorker(FaultyCopier(memory.bind(rank))) for rank in range(setup.world_size)]
    return DoubledModel(setup, memory, workers), workers


def drain(model: DoubledModel, workers: Iterable[StepWorker]) -> None:
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
        model.step(StepOptions(16))
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
        # Of its own, so that wishes change nothing else of a seed's life.
        self.stays = random.Random(~seed)
        self.model, self.workers = make_model(setup)

    def run(self, actions: int) -> Counter[str]:
        for _ in range(actions):
            self._act()
            # A little time, so that short wishes end within a life, and time-outs of seconds stay rare.
            self.model.clock.advance(self.stays.choice((0.0, 0.0, 0.0, 0.02)))
            self.model.check()
        drain(self.model, self.workers)
        for metric in (m.EXPIRED_CHUNKS, m.PIN_REFUSED_CHUNKS):
            self.model.seen[metric.name] += int(self.model.recorder.value(metric))
        return self.model.seen

    def _act(self) -> None:
        rng, model = self.rng, self.model
        dice = rng.random()
        if dice < 0.18:
            if len(model.requests) < 8:
                self._add()
        elif dice < 0.52:
            model.step(
                StepOptions(
                    rng.choice((1, 3, 8, 24)),
                    accept=rng.choice((1, 99, 99, 99)),
                    vanish=rng.random() < 0.04,
                    scratch=rng.random() < 0.1,
                )
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
        wishes = Wishes(
            max_load_tokens=limit if rng.random() < 0.5 else None,
            max_offload_tokens=limit if rng.random() < 0.5 else None,
            skip_load=rng.random() < 0.05,
            stay=self._stay(),
        )
        self.model.add(prompt, answer, wishes)

    def _stay(self) -> Stay:
        if self.stays.random() < 0.6:
            return Stay()
        return Stay(
            self.stays.choice(list(Priority)),
            keep_s=self.stays.choice((None, 0.1, 30.0)),
            ttl_s=self.stays.choice((None, 0.1, 40.0)),
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
