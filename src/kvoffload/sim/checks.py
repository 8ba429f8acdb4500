"""What must always hold in an engine model, and what must be left of it in the end. Looks inside, changes nothing."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.health import BreakerState
from kvoffload.metrics.catalog import MetricKind
from kvoffload.metrics.recorder import parse_series
from kvoffload.sim.block_pool import NULL_BLOCK
from kvoffload.sim.memory import NULL_ENTRY

if TYPE_CHECKING:
    from kvoffload.sim.engine_model import EngineModel
    from kvoffload.sim.world import World


def check(model: EngineModel) -> None:
    """Raise AssertionError if anything is wrong anywhere."""
    model.manager.check()
    _check_host(model)
    tables = [table for request in model.requests.values() for table in request.tables]
    refs = Counter(block for table in tables for block in table if block != NULL_BLOCK)
    for storages in model.memory.device:
        for storage in storages:
            assert (storage[NULL_BLOCK] == NULL_ENTRY).all(), "WRONG KV: somebody wrote the null block"
    assert all(model.pool.refs[block] == refs[block] for block in range(model.pool.num_blocks)), "model bug"


def check_drained(model: EngineModel) -> None:
    """Raise AssertionError if anything is left behind when all requests and copies have ended."""
    assert not model.requests, model.requests
    assert len(model.pool.free) == model.setup.num_blocks - 1, "blocks leaked in the model"
    assert not model.manager.has_pending_work(), "LEAK: the manager has pending work"
    assert not model.manager._requests, f"LEAK: {model.manager._requests}"
    assert not model.manager._staging._promotions, f"LEAK: {model.manager._staging._promotions}"
    assert not model.manager._staging._waiters, f"LEAK: {model.manager._staging._waiters}"
    assert not in_flight(model), "LEAK: jobs in flight"
    for tier in model.tiers:
        assert tier.pinned_count == 0, f"LEAK: {tier.pinned_count} pinned slots"
        assert len(tier._free) + tier.ready_count == tier.num_slots, "LEAK: slots"
    check(model)
    check_counters(model)


def in_flight(model: EngineModel) -> int:
    """Jobs in flight: between device and host, and to and from the tiers below, lost ones included."""
    lanes = model.manager._staging._lanes
    return len(model.manager._ledger) + sum(len(lane._jobs) for lane in lanes)


def note_life(model: EngineModel) -> None:
    """Add what the metrics of this life say to the record."""
    for series, value in model.recorder.values().items():
        if _is_counter(series):
            model.world.note(series.removeprefix("kvoffload_"), int(value))
            if model.world.lives > 1 and "verb=load,outcome=done" in series:
                model.world.note("loaded from below in a later life", int(value))


def note_breakers(model: EngineModel) -> None:
    """Count the lanes whose breaker is not closed."""
    for lane in model.manager._staging._lanes:
        model.world.note("breaker open", lane.breaker.state is not BreakerState.CLOSED)


def check_row(world: World, model: EngineModel, key: OffloadKey, row: np.ndarray) -> None:
    """Raise AssertionError if a row does not begin with what its key stands for."""
    group, tokens, chunk = world.meanings[key]
    right = model.memory.chunk_row(group, tokens, chunk, world.weights)
    assert np.array_equal(row[: right.size], right), f"WRONG KV under {key.hex()}, chunk {chunk}"


def _check_host(model: EngineModel) -> None:
    for group, tier in enumerate(model.tiers):
        rows = model.memory.rows[group]
        for key, slot in tier._ready.items():
            assert model.world.meanings[key].group == group, (key, group)
            check_row(model.world, model, key, rows[slot])


def check_counters(model: EngineModel) -> None:
    """Raise AssertionError if a counter has fallen since the last time."""
    for series, value in model.recorder.values().items():
        if _is_counter(series):
            assert value >= model.last_counters.get(series, 0), series
        model.last_counters[series] = value
    assert model.last_counters["kvoffload_hit_tokens"] <= model.last_counters["kvoffload_lookup_tokens"]


@cache
def _is_counter(series: str) -> bool:
    return parse_series(series)[0].kind is MetricKind.COUNTER
