"""Random lives of an engine, by seed: whatever happens, no request reads wrong KV, nothing hangs, nothing leaks."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from random_runs import SETUPS, run_seeds, seeds

from kvoffload.sim.copies import FaultyCopier
from kvoffload.sim.engine_model import EngineModel
from kvoffload.sim.memory import Memory
from kvoffload.sim.patterns import document
from kvoffload.sim.requests import StepOptions
from kvoffload.sim.setups import DOUBLE_SETUPS
from kvoffload.sim.world import World
from kvoffload.worker.worker import OffloadWorker


@pytest.mark.parametrize("name", DOUBLE_SETUPS)
def test_no_life_of_an_engine_sees_wrong_kv_hangs_or_leaks(name: str, request: pytest.FixtureRequest) -> None:
    count = 20
    seen = run_seeds(name, count, actions=150, node=request.node.nodeid)
    if len(seeds(count)) > 1:
        _assert_something_happened(seen)


def _assert_something_happened(seen: Counter[str]) -> None:
    # A run that loads nothing and fails nothing proves nothing.
    for event in (
        "load",
        "load failed",
        "abort waiting",
        "abort running",
        "abort loading",
        "resumed",
        "reset",
        "kvoffload_expired_chunks",
        "kvoffload_pin_refused_chunks",
    ):
        assert seen[event], (event, seen)


@pytest.mark.parametrize(
    "name", ["two workers", "no prefix cache", "asynchronous", "windows and states, asynchronous"]
)
def test_threads_that_copy_while_the_engine_runs_never_show_it_wrong_kv(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds(4):
        try:
            seen += _run_with_threads(name, seed)
        except AssertionError as error:
            raise AssertionError(
                f"setup {name!r}, seed {seed} (threads: not every run is the same): {error}"
            ) from error
    assert seen["load"], seen


def _run_with_threads(name: str, seed: int) -> Counter[str]:
    setup = SETUPS[name]
    rng = random.Random(seed)
    memory = Memory(setup)

    def choose(chunks: list[tuple[int, int]]) -> list[tuple[int, int]]:
        time.sleep(0.0002 * (len(chunks) % 3))  # copies that are still running when the next steps come
        return chunks[:1] if len(chunks) % 5 == 4 else []

    copiers = [FaultyCopier(memory.bind(rank), choose) for rank in range(setup.world_size)]
    workers = [OffloadWorker(copier, flush_timeout_s=30) for copier in copiers]
    model = EngineModel(World(setup), memory, workers)
    try:
        for _ in range(120):
            if len(model.requests) < 6:
                model.add(document(rng.randrange(4), rng.randint(1, setup.max_tokens - 3)), document(9, 3))
            if rng.random() < 0.1:
                model.abort(rng.choice(list(model.requests.values())))
            model.step(StepOptions(rng.choice((3, 8, 24))))
            model.check()
            time.sleep(0.0003)
        for request in list(model.requests.values()):
            model.abort(request)
        deadline = time.monotonic() + 30
        while not model.is_idle():
            model.step(StepOptions(1))
            time.sleep(0.0005)
            assert time.monotonic() < deadline, "HANG"
        model.check_drained()
        return model.world.seen
    finally:
        for worker in workers:
            worker.shutdown()
