"""How fast are the policies and the replay on a trace? Block accesses per second of one process, in its own CPU time.

Ours: `UnitCache` with one policy after the other (one access at a time, as the literature counts), the prefix hits that an
engine sees, and the replay with one host tier (production index, events, virtual time). Peer: libCacheSim (C behind
Python) where it is installed: it is no dependency. Limit: an OrderedDict with LRU written into the loop.

Beside the rates: the misses of both (the same integers, where both have the policy in the same variant), and what a pass
over the whole file takes in memory, once and with every request four times: it follows the unique blocks.

    python benchmarks/trace_policies.py [TRACE] [--json] [--quick]

Without a trace: random prompts that share beginnings, about 300,000 accesses. CPU time, because the machines are shared.
"""

from __future__ import annotations

import argparse
import atexit
import random
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import common
from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.policies.lru import LRUPolicy
from kvoffload.sim.replay.counting import count_misses, count_prefix_hits
from kvoffload.sim.replay.engine import Replay
from kvoffload.sim.replay.options import ReplayOptions, parse_tiers
from kvoffload.sim.replay.stack import stack_distances
from kvoffload.sim.traces.base import TraceRequest
from kvoffload.sim.traces.opening import open_trace

OURS, PEER, LIMIT = "kvoffload", "libCacheSim", "OrderedDict loop (LRU)"
CAPACITY, BLOCK_TOKENS = 10_000, 512
MEMORY_PASSES = (1, 4)
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

    def walk(name: str) -> int:
        get = getattr(libcachesim, name)(cache_size=CAPACITY).get
        return sum(not get(request) for request in requests)

    def walk_in_c(path: str) -> None:
        reader = libcachesim.TraceReader(path, libcachesim.TraceType.PLAIN_TXT_TRACE)
        libcachesim.LRU(cache_size=CAPACITY).process_trace(reader)

    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        file.writelines(f"{numbers[key] + 1}\n" for key in stream)
    atexit.register(Path(file.name).unlink)
    runs: dict[str, Callable[[], object]] = {
        policy: partial(walk, name) for policy, name in PEER_NAMES.items()
    }
    # Its own loop over a file, without Python: what it is made for. Beside our prefix hits, the pass that users see.
    runs["prefix hits, lru"] = partial(walk_in_c, file.name)
    return runs


def our_runs(
    requests: Sequence[TraceRequest], stream: Sequence[OffloadKey]
) -> dict[str, Callable[[], object]]:
    tiers = parse_tiers(f"host={CAPACITY * BLOCK_TOKENS}@20GB")
    options = ReplayOptions(tiers, bytes_per_token=1)
    runs: dict[str, Callable[[], object]] = {
        name: lambda name=name: count_misses(stream, EVICTION_POLICIES.resolve(name)(CAPACITY))  # type: ignore[misc]
        for name in EVICTION_POLICIES.names()
    }
    runs["prefix hits, lru"] = lambda: count_prefix_hits(requests, BLOCK_TOKENS, LRUPolicy(CAPACITY))
    runs["replay, lru, one tier"] = lambda: Replay(options, BLOCK_TOKENS).run(requests)
    runs["stack distances"] = lambda: stack_distances(stream)
    return runs


def miss_rows(
    ours: dict[str, Callable[[], object]], peers: dict[str, Callable[[], object]]
) -> list[common.Row]:
    """Where the peer has the policy: misses of both."""
    rows = []
    for name, run in peers.items():
        found, theirs = ours[name](), run()
        assert isinstance(found, int)
        assert isinstance(theirs, int)
        rows.append(common.Row(f"{name} misses", "blocks", found, PEER, theirs, None, None, 1, 0))
    return rows


def repeated(trace: Path, times: int) -> Iterator[TraceRequest]:
    """The requests of a file again and again, each time later."""
    found, last_s, start_s = open_trace(trace), 0.0, 0.0
    for _ in range(times):
        for request in found:
            last_s = start_s + request.arrival_s
            yield replace(request, arrival_s=last_s)
        start_s = last_s


def peak_bytes() -> int:
    # Not ru_maxrss: a child begins with its parent's.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def print_memory(trace: Path, times: int) -> None:
    """In a process of its own: what a replay adds to the memory of one that has only imported everything."""
    options = ReplayOptions(parse_tiers(f"host={CAPACITY * BLOCK_TOKENS}@20GB"), bytes_per_token=1)
    before = peak_bytes()
    outcome = Replay(options, BLOCK_TOKENS).run(repeated(trace, times))
    print(outcome.accesses, peak_bytes() - before, before)


def memory_rows(trace: Path, stream: Sequence[OffloadKey]) -> list[common.Row]:
    unique = len(set(stream))
    rows = []
    for times in MEMORY_PASSES:
        command = [sys.executable, __file__, str(trace), "--memory", str(times)]
        answer = subprocess.run(  # noqa: S603 - this very script
            command, check=True, capture_output=True, text=True
        ).stdout.split()
        accesses, added, before = map(int, answer)
        print(
            f"memory: {accesses} accesses of {unique} unique blocks: {added / 2**20:.1f} MiB beyond the {before / 2**20:.0f} MiB "
            f"of the interpreter and its modules, {added / unique:.0f} bytes per unique block",
            file=sys.stderr,
        )
        case = f"replay memory, {accesses} accesses"
        rows.append(common.Row(case, "MiB", round(added / 2**20, 1), None, None, None, None, 1, 0))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.memory:
        print_memory(options.trace, options.memory)
        return
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
    rows = [common.row(case, "M/s", values, names) for case in ours]
    rows += miss_rows(ours, {name: run for name, run in peers.items() if name in PEER_NAMES})
    if options.trace:
        rows += memory_rows(options.trace, stream)
    common.emit(rows, as_json=options.json)


if __name__ == "__main__":
    main()
