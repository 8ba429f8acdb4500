"""How fast are the policies and the replay on a trace? Block accesses per second of one process, in its own CPU time.

Ours: `UnitCache` with one policy after the other (one access at a time, as the literature counts), and the replay with one
host tier (production index, events, virtual time). Peer: libCacheSim (C++ behind Python) where it is installed: it
is no dependency. Limit: an OrderedDict with LRU written into the loop.

    python benchmarks/trace_policies.py [TRACE] [--json] [--quick]

Without a trace: random prompts that share beginnings, about 300,000 accesses. CPU time, because the machines are shared.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import common
from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.sim.replay.counting import count_misses
from kvoffload.sim.replay.engine import Replay
from kvoffload.sim.replay.options import ReplayOptions, parse_tiers
from kvoffload.sim.replay.stack import stack_distances
from kvoffload.sim.traces.base import TraceRequest
from kvoffload.sim.traces.opening import open_trace

OURS, PEER, LIMIT = "kvoffload", "libCacheSim", "OrderedDict loop (LRU)"
CAPACITY, BLOCK_TOKENS = 10_000, 512
PEER_NAMES = {"fifo": "FIFO", "lru": "LRU", "lfu": "LFU", "arc": "ARC", "s3fifo": "S3FIFO", "sieve": "Sieve"}


def random_requests(count: int) -> list[TraceRequest]:
    rng = random.Random(1)
    prompts: list[tuple[OffloadKey, ...]] = [()]
    fresh = 0
    for _ in range(count):
        stem = prompts[rng.randrange(max(0, len(prompts) - 500), len(prompts))]
        new = range(fresh, fresh + rng.randint(8, 24))
        fresh = new.stop
        keys = tuple(make_offload_key(number.to_bytes(9, "big"), 0) for number in new)
        prompts.append(stem[: rng.randint(0, min(len(stem), 24))] + keys)
    return [TraceRequest(turn / 3, BLOCK_TOKENS * len(keys), 1, keys) for turn, keys in enumerate(prompts)]


def rate(accesses: int, run: Callable[[], object]) -> float:
    start_s = time.process_time()
    run()
    return accesses / (time.process_time() - start_s) / 1e6


def plain_lru(stream: Iterable[OffloadKey]) -> int:
    order: OrderedDict[OffloadKey, None] = OrderedDict()
    misses = 0
    for key in stream:
        if key in order:
            order.move_to_end(key)
            continue
        misses += 1
        if len(order) >= CAPACITY:
            order.popitem(last=False)
        order[key] = None
    return misses


def peer_runs(stream: Sequence[OffloadKey]) -> dict[str, Callable[[], object]]:
    try:
        import libcachesim  # type: ignore[import-not-found]
    except ImportError:
        return {}
    numbers = {key: number for number, key in enumerate(dict.fromkeys(stream))}
    requests = []
    for key in stream:
        request = libcachesim.Request()
        request.obj_id, request.obj_size = numbers[key] + 1, 1
        requests.append(request)

    def walk(name: str) -> None:
        get = getattr(libcachesim, name)(cache_size=CAPACITY).get
        for request in requests:
            get(request)

    return {policy: partial(walk, name) for policy, name in PEER_NAMES.items()}


def our_runs(
    requests: Sequence[TraceRequest], stream: Sequence[OffloadKey]
) -> dict[str, Callable[[], object]]:
    tiers = parse_tiers(f"host={CAPACITY * BLOCK_TOKENS}@20GB")
    options = ReplayOptions(tiers, bytes_per_token=1)
    runs: dict[str, Callable[[], object]] = {
        name: lambda name=name: count_misses(stream, EVICTION_POLICIES.resolve(name)(CAPACITY))  # type: ignore[misc]
        for name in EVICTION_POLICIES.names()
    }
    runs["replay, lru, one tier"] = lambda: Replay(options, BLOCK_TOKENS).run(requests)
    runs["stack distances"] = lambda: stack_distances(stream)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    count = 1_000 if options.quick else 12_000
    requests = list(open_trace(options.trace)) if options.trace else random_requests(count)
    stream = [key for request in requests for key in request.keys]
    ours, peers = our_runs(requests, stream), peer_runs(stream)

    def measured(runs: dict[str, Callable[[], object]]) -> Callable[[], dict[str, float]]:
        return lambda: {name: rate(len(stream), run) for name, run in runs.items()}

    contenders = {
        OURS: measured(ours),
        PEER: measured(peers),
        LIMIT: lambda: dict.fromkeys(ours, rate(len(stream), lambda: plain_lru(stream))),
    }
    values = common.interleave(1 if options.quick else 5, contenders)
    names = (OURS, PEER if peers else None, LIMIT)
    common.emit([common.row(case, "M/s", values, names) for case in ours], as_json=options.json)


if __name__ == "__main__":
    main()
