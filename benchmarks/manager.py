"""How much of the scheduler's time does the host tier's bookkeeping cost? µs per key, at 100,000 resident keys.

Ours: `HostTier` with LRU. Peer: the manager of the installed vLLM (`CPUOffloadingManager`, LRU), if there is one.
Limit: the same number of operations on a plain dict. All in one run, interleaved; keys come in batches of 64, as
from a prompt of 64 chunks, through the verbs that the production code of each uses.

Then whole requests through `OffloadManager` (arrival, match, load or store, end), half of them seen before. Ours: as it is,
with the curve of other sizes (`manager/size_watch.py`); limit: without it. And what the curve costs, in per cent of the
manager's time: both in turn, request by request, in CPU time; the median of all rounds, and how far they are apart.

    python benchmarks/manager.py [--json] [--quick]
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import statistics
import sys
import time
from collections.abc import Callable

import common
from kvoffload.clock import ManualClock
from kvoffload.keys.offload_key import OffloadKey, block_hash_of, make_offload_key
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.manager import ManagerConfig, OffloadManager
from kvoffload.manager.request import GroupGeometry, RequestInfo
from kvoffload.manager.size_watch import SizeWatch
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.messages import JobOutcome, StepMessage, WorkerReport
from kvoffload.metrics.recorder import Recorder
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.lru import LRUPolicy
from kvoffload.types import BlockId, RequestId

BATCH = 64
ROUNDS = 15
OURS, PEER, LIMIT = "kvoffload HostTier", "vLLM CPUOffloadingManager", "plain dict"
WHOLE, CURVE, NO_CURVE = "whole requests", "kvoffload OffloadManager", "the same without the curve"
CASES = ("store", "lookup", "load", "store with eviction")


def make_keys(count: int, salt: str) -> list[list[OffloadKey]]:
    keys = [make_offload_key(hashlib.sha256(f"{salt}{i}".encode()).digest(), 0) for i in range(count)]
    return [keys[i : i + BATCH] for i in range(0, count, BATCH)]


def timed(batches: list[list[OffloadKey]], work: Callable[[list[OffloadKey]], object]) -> float:
    """µs per key. The garbage collector stays on: the engine's scheduler has it on, too."""
    gc.collect()
    started = time.perf_counter()
    for batch in batches:
        work(batch)
    return (time.perf_counter() - started) / sum(map(len, batches)) * 1e6


def run_ours(resident: list[list[OffloadKey]], fresh: list[list[OffloadKey]]) -> dict[str, float]:
    capacity = sum(map(len, resident))
    tier = HostTier(capacity, LRUPolicy(capacity), TouchFilter(0, 1))

    def store(keys: list[OffloadKey]) -> None:
        tier.commit_store(tier.prepare_store(keys).stored)

    def lookup(keys: list[OffloadKey]) -> None:
        assert tier.lookup_prefix(keys) == (len(keys), False)

    def load(keys: list[OffloadKey]) -> None:
        tier.complete_load(tier.prepare_load(keys))  # type: ignore[arg-type]  # all of them are there

    times = {
        case: timed(resident, work) for case, work in (("store", store), ("lookup", lookup), ("load", load))
    }
    times["store with eviction"] = timed(fresh, store)
    assert tier.ready_count == capacity
    return times


def run_peer(resident: list[list[OffloadKey]], fresh: list[list[OffloadKey]]) -> dict[str, float]:
    from vllm.v1.kv_offload.base import LookupResult, ReqContext
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

    manager = CPUOffloadingManager(num_chunks=sum(map(len, resident)), cache_policy="lru")
    names = (f"request-{i}" for i in iter(int, 1))

    def context() -> ReqContext:
        request = ReqContext(req_id=next(names))
        manager.on_new_request(request)
        return request

    def store(keys: list[OffloadKey]) -> None:
        request = context()
        output = manager.prepare_store(keys, request)
        manager.complete_store(output.keys_to_store, request)

    def lookup(keys: list[OffloadKey]) -> None:
        request = context()
        for key in keys:
            assert manager.lookup(key, request) is LookupResult.HIT

    def load(keys: list[OffloadKey]) -> None:
        request = context()
        manager.prepare_load(keys, request)
        manager.complete_load(keys, request)

    times = {
        case: timed(resident, work) for case, work in (("store", store), ("lookup", lookup), ("load", load))
    }
    times["store with eviction"] = timed(fresh, store)
    return times


def run_limit(resident: list[list[OffloadKey]], fresh: list[list[OffloadKey]]) -> dict[str, float]:
    table: dict[OffloadKey, int] = {}

    def store(keys: list[OffloadKey]) -> None:
        for key in keys:
            table[key] = 1

    def lookup(keys: list[OffloadKey]) -> None:
        for key in keys:
            assert key in table

    def replace(keys: list[OffloadKey]) -> None:
        for key in keys:
            table.popitem()
            table[key] = 1

    return {
        "store": timed(resident, store),
        "lookup": timed(resident, lookup),
        "load": timed(resident, lookup),
        "store with eviction": timed(fresh, replace),
    }


class Requests:
    """Drives a manager through requests of one chunk per block: each is computed in one step, or loaded."""

    def __init__(self, slots: int, *, curve: bool) -> None:
        self._tier = HostTier(slots, LRUPolicy(slots), TouchFilter(0, 1))
        geometry = GroupGeometry(0, 16, 1, 16)
        config = ManagerConfig(
            (geometry,),
            world_size=1,
            offload_prompt_only=True,
            wait_for_loads=True,
            pending_timeout_s=5,
            transfer_timeout_s=60,
        )
        recorder = Recorder()
        self._manager = OffloadManager(config, [self._tier], recorder, ManualClock())
        if not curve:
            self._manager._storing._watch = SizeWatch([], [], recorder)  # noqa: SLF001 - it cannot be switched off
        self._blocks = [BlockId(number) for number in range(1, BATCH + 1)]
        self._count = 0

    def one(self, hashes: list[bytes]) -> None:
        """A request comes, and goes."""
        manager, blocks, tokens = self._manager, self._blocks, 16 * len(hashes)
        self._count += 1
        req_id = RequestId(str(self._count))
        manager.add_request(RequestInfo(req_id, tokens, hashes))
        found = manager.match(req_id, 0) or 0
        manager.allocated(req_id, [blocks], 0, found)
        message = manager.step(
            StepInput((ScheduledRequest(req_id, (blocks,), True, found, max(1, tokens - found)),))
        )
        self._report(message)
        manager.finish_request(req_id, tokens)
        self._report(manager.step(StepInput(finished=(req_id,))))

    def _report(self, message: StepMessage) -> None:
        jobs = (*message.loads, *message.stores)
        if jobs:
            self._manager.report(WorkerReport({job.job_id: JobOutcome(1) for job in jobs}))


def run_requests(batches: list[list[bytes]]) -> dict[str, float]:
    """Both in turn, request by request, because the machine's speed changes from one second to the next.

    CPU time of this thread, so that nothing has to be left out: the curve's work comes in a few of the requests.
    """
    slots = sum(map(len, batches)) // 2
    contenders = {CURVE: Requests(slots, curve=True), NO_CURVE: Requests(slots, curve=False)}
    twice = [batch for index in range(0, len(batches), 8) for batch in batches[index : index + 8] * 2]
    taken = dict.fromkeys(contenders, 0)
    gc.collect()
    for number, batch in enumerate(twice):
        for name in (CURVE, NO_CURVE) if number % 2 else (NO_CURVE, CURVE):
            started = time.thread_time_ns()
            contenders[name].one(batch)
            taken[name] += time.thread_time_ns() - started
    return {name: spent / 1e3 for name, spent in taken.items()}


FAST_TOKENS_PER_S, TOKENS_PER_KEY = 100_000, 16
"""An engine that computes this fast, and its blocks: what the curve costs is compared with the time that it has for a key."""


def overhead_row(found: list[dict[str, float]], keys: int) -> common.Row:
    added = statistics.median((times[CURVE] - times[NO_CURVE]) / keys for times in found)
    per_key = TOKENS_PER_KEY / FAST_TOKENS_PER_S * 1e6
    print(
        f"curve of sizes: {added:.3f} µs a key; an engine that computes {FAST_TOKENS_PER_S:,} tokens a second has "
        f"{per_key:.0f} µs for it: {added / per_key * 100:.3f} %",
        file=sys.stderr,
    )
    costs = [(times[CURVE] / times[NO_CURVE] - 1) * 100 for times in found]
    quarters = statistics.quantiles(costs, n=4)
    print(
        f"curve of sizes: {statistics.median(costs):.2f} % of the manager's time, median of {len(costs)} rounds; "
        f"half of them from {quarters[0]:.2f} to {quarters[2]:.2f}, all from {min(costs):.2f} to {max(costs):.2f}",
        file=sys.stderr,
    )
    middle = statistics.median(costs)
    spread = (max(costs) - min(costs)) / abs(middle) if middle else 0.0
    return common.Row(
        "curve of sizes", "% of it", round(middle, 3), None, None, None, None, len(costs), round(spread, 3)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line, nothing else on stdout")
    parser.add_argument("--quick", action="store_true", help="10,000 keys instead of 100,000")
    arguments = parser.parse_args()
    count = 10_000 if arguments.quick else 100_000
    resident, fresh = make_keys(count, "a"), make_keys(count // 2, "b")
    runs = {OURS: lambda: run_ours(resident, fresh), LIMIT: lambda: run_limit(resident, fresh)}
    try:
        import vllm.v1.kv_offload.cpu.manager  # noqa: F401
    except ImportError:
        peer = None
    else:
        peer = PEER
        runs[PEER] = lambda: run_peer(resident, fresh)
    values = common.interleave(5, runs)
    rows = [common.row(case, "µs/key", values, (OURS, peer, LIMIT)) for case in CASES]
    hashes = [[block_hash_of(key) for key in batch] for batch in resident]
    found = [run_requests(hashes) for _ in range(ROUNDS)]
    keys = 2 * count
    values = {name: {WHOLE: [times[name] / keys for times in found]} for name in (CURVE, NO_CURVE)}
    rows.append(common.row(WHOLE, "µs/key", values, (CURVE, None, NO_CURVE)))
    rows.append(overhead_row(found, keys))
    common.emit(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
