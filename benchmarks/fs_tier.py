"""How fast is the fs tier? Store and load in GB/s, checksums on, durability as the peer's (no fsync).

Ours: `FsTier`. Peer: `FileSystemTierManager` of the installed vLLM, if there is one: same buffer, same directory, same
chunks, same jobs. Limit: `fio` with the same pattern (16 threads, O_DIRECT, one write or read per new file, no names to
publish, no directories to make); without fio a plain loop of pwritev / preadv in 16 threads. All in one run,
interleaved, in another order each round.

Two shapes of work: `stream` keeps 8 jobs of 32 MiB in flight, as the cascade does; `one` has one job of 128 MiB at a time,
as the promotion of one long prompt.

Then the index: what a lookup of 2,000 chunks costs the scheduler's thread (ms), and how long the walk of a directory takes (s; the
limit is a bare scandir and stat of everything), with the longest pause that it causes to another thread (ms).

    python benchmarks/fs_tier.py [--json] [--quick] [--dir DIR] [--chunks N]

`--dir` should be on the disk in question. Nothing of what is written stays.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import common
from kvoffload.clock import MonotonicClock, WallClock
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.layout.chunk_format import checksum
from kvoffload.tiers.base import Outcome, TierEntry, TierJob, Verb
from kvoffload.tiers.fs.options import FsTierConfig
from kvoffload.tiers.fs.tier import FsTier

OURS, PEER, LIMIT = "kvoffload FsTier", "vLLM FileSystemTierManager", "fio"
PLAIN_LIMIT = "plain pwritev/preadv, 16 threads"
SIZES = {"256 KiB": 256 << 10, "512 KiB": 512 << 10, "2 MiB": 2 << 20, "8 MiB": 8 << 20}
SHAPES = {"stream": (32 << 20, 8), "one": (128 << 20, 1)}
"""Name → (bytes of a job, jobs in flight)."""
THREADS = 16
ROUNDS = 6
SETTLE_S = 2.0
AFTER_DELETION_S = 65.0
"""For a minute ext4 passes over the inodes of deleted files when it makes new ones, which halves the rate of small stores."""
PAUSE_S = 1e-4


class Contender(Protocol):
    """Something that stores and loads jobs of chunks."""

    def submit(self, verb: Verb, job_id: int, rows: Sequence[int]) -> None:
        """Begin a job of these rows."""

    def poll(self) -> int:
        """How many jobs have ended since the last call; asserts that they ended well."""

    def close(self) -> None:
        """End it."""


class Ours:
    """Our tier."""

    def __init__(self, root: Path, buffer: memoryview, size: int, keys: Sequence[OffloadKey]) -> None:
        fields = {"layout_family": "direct", "layout_version": 1, "model": "benchmark", "chunk": size}
        namespace = Namespace("benchmark", json.dumps(fields, sort_keys=True, separators=(",", ":")))
        config = FsTierConfig(root_dir=str(root), max_bytes=1 << 40, min_free_bytes=0, threads=THREADS)
        self._tier = FsTier(config, namespace, (size,), clock=MonotonicClock(), wall_clock=WallClock())
        self._rows = [TierEntry(key, buffer[i * size : (i + 1) * size]) for i, key in enumerate(keys)]

    def submit(self, verb: Verb, job_id: int, rows: Sequence[int]) -> None:
        """See Contender."""
        assert self._tier.submit(TierJob(job_id, verb, tuple(self._rows[i] for i in rows)))

    def poll(self) -> int:
        """See Contender."""
        reports = self._tier.poll()
        assert all(set(report.outcomes.values()) == {Outcome.DONE} for report in reports), reports
        return len(reports)

    def close(self) -> None:
        """See Contender."""
        self._tier.shutdown()


class Peer:
    """The tier of the installed vLLM."""

    def __init__(self, root: Path, buffer: memoryview, size: int, keys: Sequence[OffloadKey]) -> None:
        import numpy as np
        from vllm.v1.kv_offload.base import ReqContext
        from vllm.v1.kv_offload.tiering.base import TransferJob
        from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

        group = SimpleNamespace(tokens_per_block=16, layer_names=("layer",))
        parallel = SimpleNamespace(
            tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=False
        )
        config = SimpleNamespace(
            groups=(group,),
            parallel=parallel,
            canonical_layout=False,
            replicated_layout=False,
            model=SimpleNamespace(name="benchmark", dtype="bfloat16"),
            cache=SimpleNamespace(tokens_per_hash=16),
        )
        spec: Any = SimpleNamespace(config=config, blocks_per_chunk=1)
        view = buffer[: len(keys) * size].cast("B", (len(keys), size))
        self._tier = FileSystemTierManager(spec, view, "fs", str(root))
        self._keys, self._array, self._job = keys, np.array, TransferJob
        self._context = ReqContext(req_id="benchmark")

    def submit(self, verb: Verb, job_id: int, rows: Sequence[int]) -> None:
        """See Contender."""
        is_load = verb is Verb.LOAD
        job = self._job(job_id, [self._keys[i] for i in rows], self._array(rows), is_load, self._context)
        (self._tier.submit_load if is_load else self._tier.submit_store)(job)

    def poll(self) -> int:
        """See Contender."""
        results = list(self._tier.get_finished_jobs())
        assert all(result.success for result in results), results
        return len(results)

    def close(self) -> None:
        """See Contender."""
        self._tier.shutdown()


def run_jobs(contender: Contender, verb: Verb, count: int, size: int, shape: str) -> float:
    """GB/s of storing or loading `count` chunks."""
    job_bytes, in_flight = SHAPES[shape]
    per_job = max(1, job_bytes // size)
    waiting = deque(range(first, min(first + per_job, count)) for first in range(0, count, per_job))
    running, numbers = 0, itertools.count(1)
    started = time.perf_counter()
    while waiting or running:
        while waiting and running < in_flight:
            contender.submit(verb, next(numbers), waiting.popleft())
            running += 1
        running -= contender.poll()
        time.sleep(PAUSE_S)
    return count * size / (time.perf_counter() - started) / 1e9


def run_contender(
    make: Callable[..., Contender], base: Path, buffer: memoryview, size: int, shapes: Sequence[str]
) -> dict[str, float]:
    """GB/s of every case of one chunk size, in fresh directories."""
    count = len(buffer) // size
    values = {}
    for shape in shapes:
        keys = [make_offload_key(hashlib.sha256(b"%d" % i).digest(), 0) for i in range(count)]
        contender = make(Path(tempfile.mkdtemp(dir=base)), buffer, size, keys)
        for verb in (Verb.STORE, Verb.LOAD):
            values[f"{verb.value} {shape}"] = run_jobs(contender, verb, count, size, shape)
            settle(0.1)
        contender.close()
    return values


def run_fio(base: Path, total: int, size: int, shapes: Sequence[str]) -> dict[str, float]:
    """GB/s that fio gets, counted for every shape."""
    values, root = {}, tempfile.mkdtemp(dir=base)
    for verb, mode in ((Verb.STORE, "write"), (Verb.LOAD, "read")):
        command = [
            "fio", "--name=limit", f"--directory={root}", f"--rw={mode}", f"--bs={size}", f"--filesize={size}",
            f"--nrfiles={max(1, total // size // THREADS)}", f"--numjobs={THREADS}", "--direct=1", "--ioengine=psync",
            "--openfiles=1", "--file_service_type=sequential", "--thread", "--group_reporting", "--create_on_open=1",
            "--fallocate=none", "--output-format=json",
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        text = done.stdout[done.stdout.index("{") :]
        rate = json.loads(text)["jobs"][0][mode]["bw_bytes"] / 1e9
        values.update({f"{verb.value} {shape}": rate for shape in shapes})
        settle(0.1)
    return values


def run_plain(base: Path, buffer: memoryview, size: int, shapes: Sequence[str]) -> dict[str, float]:
    """GB/s of a plain loop, counted for every shape: the limit where there is no fio."""
    count, values, root = len(buffer) // size, {}, tempfile.mkdtemp(dir=base)
    for verb in (Verb.STORE, Verb.LOAD):
        flags = os.O_DIRECT | (os.O_CREAT | os.O_WRONLY if verb is Verb.STORE else os.O_RDONLY)
        call = os.pwritev if verb is Verb.STORE else os.preadv

        def work(i: int, flags: int = flags, call: Any = call) -> None:
            fd = os.open(f"{root}/{i}", flags, 0o644)
            call(fd, [buffer[i * size : (i + 1) * size]], 0)
            os.close(fd)

        with ThreadPoolExecutor(THREADS) as threads:
            started = time.perf_counter()
            list(threads.map(work, range(count)))
            rate = count * size / (time.perf_counter() - started) / 1e9
        values.update({f"{verb.value} {shape}": rate for shape in shapes})
        settle(0.1)
    return values


@contextmanager
def scratch(base: Path, settle_s: float = SETTLE_S) -> Iterator[Path]:
    """A directory that is gone afterwards, and the disk quiet: deleting (and trimming) is slow and goes on for a while."""
    path = Path(tempfile.mkdtemp(dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path)
        settle(settle_s)


def settle(seconds: float) -> None:
    """Let the disk end what it has begun."""
    os.sync()
    time.sleep(seconds)


def measure_checksum(buffer: memoryview, size: int) -> dict[str, float]:
    """GB/s of the checksum alone, on one thread."""
    count = min(256, len(buffer) // size)
    started = time.perf_counter()
    for i in range(count):
        checksum(buffer[i * size : (i + 1) * size])
    return {"checksum": count * size / (time.perf_counter() - started) / 1e9}


def measure(base: Path, buffer: memoryview, name: str) -> list[common.Row]:
    """All rows of one chunk size."""
    # Nothing is deleted before the last round, so that nobody pays for deletions.
    with scratch(base, AFTER_DELETION_S) as root:
        return measure_in(root, buffer, name)


def measure_in(root: Path, buffer: memoryview, name: str) -> list[common.Row]:
    """The same, in a directory to be filled."""
    size, shapes = SIZES[name], tuple(SHAPES)
    has_fio = shutil.which("fio") is not None
    limit = LIMIT if has_fio else PLAIN_LIMIT
    runs: dict[str, Callable[[Path], dict[str, float]]] = {
        OURS: lambda root: run_contender(Ours, root, buffer, size, shapes) | measure_checksum(buffer, size),
        limit: (lambda root: run_fio(root, len(buffer), size, shapes))
        if has_fio
        else (lambda root: run_plain(root, buffer, size, shapes)),
    }
    peer = PEER if has_peer() else None
    if peer:
        runs[peer] = lambda root: run_contender(Peer, root, buffer, size, shapes)
    values: dict[str, dict[str, list[float]]] = {contender: {} for contender in runs}
    order = list(runs)
    for number in range(ROUNDS):
        print(f"{name}, round {number + 1} of {ROUNDS}", file=sys.stderr)
        turned = order[number % len(order) :] + order[: number % len(order)]
        found = common.interleave(1, {c: functools.partial(runs[c], root) for c in turned})
        for contender, cases in found.items():
            for case, rates in cases.items():
                values[contender].setdefault(case, []).extend(rates)
    cases = [f"{verb.value} {shape}" for shape in shapes for verb in (Verb.STORE, Verb.LOAD)]
    renamed = {
        contender: {f"{case} {name}": found for case, found in by_case.items()}
        for contender, by_case in values.items()
    }
    return [
        common.row(f"{case} {name}", "GB/s", renamed, (OURS, peer, limit)) for case in (*cases, "checksum")
    ]


def call_ms(work: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def lookup_ours(base: Path, there: Sequence[OffloadKey], others: Sequence[OffloadKey]) -> dict[str, float]:
    """Ms of the scheduler's thread per call."""
    with scratch(base) as root:
        ours = Ours(root, memoryview(mmap.mmap(-1, len(there) * 4096)), 4096, there)
        run_jobs(ours, Verb.STORE, len(there), 4096, "one")
        ours.close()
        ours = Ours(root, memoryview(mmap.mmap(-1, len(there) * 4096)), 4096, there)
        lookup = ours._tier.lookup  # noqa: SLF001
        values = {"there, first call": call_ms(lambda: lookup(there))}
        time.sleep(1)
        values["there, later call"] = call_ms(lambda: lookup(there))
        values["not there, first call"] = call_ms(lambda: lookup(others))
        time.sleep(0.5)
        values["not there, later call"] = call_ms(lambda: lookup(others))
        ours.close()
    return values


def lookup_peer(base: Path, there: Sequence[OffloadKey], others: Sequence[OffloadKey]) -> dict[str, float]:
    """The same; the end of the step, which sends the questions off, belongs to the call."""
    from vllm.v1.kv_offload.base import ReqContext

    with scratch(base) as root:
        peer = Peer(root, memoryview(mmap.mmap(-1, len(there) * 4096)), 4096, there)
        run_jobs(peer, Verb.STORE, len(there), 4096, "one")
        tier, values = peer._tier, {}  # noqa: SLF001
        context = ReqContext(req_id="lookup")

        def step(keys: Sequence[OffloadKey]) -> None:
            for key in keys:
                tier.lookup(key, context)
            tier.on_schedule_end(None)

        for name, keys in (("there", there), ("not there", others)):
            values[f"{name}, first call"] = call_ms(lambda keys=keys: step(keys))
            time.sleep(0.5)
            values[f"{name}, later call"] = call_ms(lambda keys=keys: step(keys))
        peer.close()
    return values


def measure_lookup(base: Path) -> list[common.Row]:
    """Rows of the lookup."""
    keys = [make_offload_key(hashlib.sha256(b"%d" % i).digest(), 0) for i in range(4000)]
    there, others = keys[:2000], keys[2000:]
    runs = {OURS: lambda: lookup_ours(base, there, others)}
    peer = PEER if has_peer() else None
    if peer:
        runs[peer] = lambda: lookup_peer(base, there, others)
    values = common.interleave(ROUNDS, runs)
    cases = [f"{name}, {call} call" for name in ("there", "not there") for call in ("first", "later")]
    named = {c: {f"lookup 2000 {case}": found for case, found in v.items()} for c, v in values.items()}
    return [common.row(f"lookup 2000 {case}", "ms", named, (OURS, peer, None)) for case in cases]


def longest_pause_ms(until: Callable[[], bool]) -> float:
    """By how much another thread's short sleeps were prolonged at worst."""
    worst = 0.0
    while not until():
        started = time.perf_counter()
        time.sleep(0.001)
        worst = max(worst, time.perf_counter() - started - 0.001)
    return worst * 1e3


def measure_walk(base: Path, count: int) -> list[common.Row]:
    """Rows of the walk over `count` chunks (sparse files of 2 MiB)."""
    size = SIZES["2 MiB"]
    with scratch(base) as root:
        empty = Ours(root, memoryview(mmap.mmap(-1, size)), size, [])
        place = empty._tier._around.place  # noqa: SLF001
        empty.close()
        for i in range(count):
            chunk = place.chunk_file(make_offload_key(hashlib.sha256(b"%d" % i).digest(), 0))
            Path(chunk.path).parent.mkdir(parents=True, exist_ok=True)
            with Path(chunk.path).open("wb") as file:
                file.truncate(chunk.file_bytes)

        def walk() -> dict[str, float]:
            started = time.perf_counter()
            ours = Ours(root, memoryview(mmap.mmap(-1, size)), size, [])
            room = ours._tier._upkeep._room  # noqa: SLF001
            pause_ms = longest_pause_ms(room.walked.is_set)
            values = {"walk": time.perf_counter() - started, "longest pause during the walk": pause_ms}
            assert ours._tier.stats().stored_chunks == count  # noqa: SLF001
            ours.close()
            return values

        def bare() -> dict[str, float]:
            started = time.perf_counter()
            for directory, _, names in os.walk(root):
                for name in names:
                    os.lstat(f"{directory}/{name}")
            ended_s = time.perf_counter()
            idle_ms = longest_pause_ms(lambda: time.perf_counter() > ended_s + 1)
            return {"walk": ended_s - started, "longest pause during the walk": idle_ms}

        values = common.interleave(ROUNDS, {OURS: walk, "os.walk and lstat (pause: idle)": bare})
    return [
        common.row(case, unit, values, (OURS, None, "os.walk and lstat (pause: idle)"))
        for case, unit in (("walk", "s"), ("longest pause during the walk", "ms"))
    ]


def has_peer() -> bool:
    """Whether the peer can be measured."""
    try:
        import vllm.v1.kv_offload.tiering.fs.manager  # noqa: F401
    except ImportError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line, nothing else on stdout")
    parser.add_argument("--quick", action="store_true", help="256 MiB a run instead of 512 MiB")
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where to write (default: %(default)s)")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--chunks", type=int, default=100_000, help="chunks in the directory that is walked")
    arguments = parser.parse_args()
    total = (256 if arguments.quick else 512) << 20
    # Two shapes and three contenders in each round; what is written stays until the end of a size.
    needed = total * 2 * 3 * ROUNDS
    if shutil.disk_usage(arguments.dir).free < 2 * needed:
        parser.error(
            f"{arguments.dir} has less than {2 * needed >> 30} GiB free; give another --dir or --quick"
        )
    buffer = memoryview(mmap.mmap(-1, total))
    for offset in range(0, total, 1 << 20):
        buffer[offset : offset + (1 << 20)] = os.urandom(4096) * 256
    base = Path(tempfile.mkdtemp(prefix="fs-tier-", dir=arguments.dir))
    try:
        rows = [row for name in arguments.sizes for row in measure(base, buffer, name)]
        del buffer
        rows += measure_lookup(base) + measure_walk(base, 10_000 if arguments.quick else arguments.chunks)
    finally:
        shutil.rmtree(base)
    common.emit(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
