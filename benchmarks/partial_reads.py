"""What does a rank gain that reads its share of each chunk, and what do those pay who read and write whole ones?

A model of 32 layers with 8 KV heads of 128 numbers of 2 bytes, canonical rows (heads outside). A rank of TP 2, 4 and 8 needs 1/2, 1/4
and 1/8 of every row, in pieces of 32, 16 and 8 KiB per 16 tokens.

Parts, in chunks per second: ours (`FsTier` with ranges: pieces verified), against reading the whole chunks by the same tier
(what every rank would do otherwise), and as a limit a plain loop of preadv over the rank's exact ranges, nothing verified. All of
them 16 threads, O_DIRECT where it works, the same files, interleaved. Behind them: bytes read from the files per byte needed.

Pieces, in GB/s: storing and loading whole rows in pieces, against the same rows as one piece; and the checksums alone (per second of processor time).

    python benchmarks/partial_reads.py [--json] [--quick] [--dir DIR]

`--dir` should be on the disk in question. Nothing of what is written stays.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common
from kvoffload.clock import MonotonicClock, WallClock
from kvoffload.config.pages import AttentionPage
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import make_offload_key
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.chunk_format import piece_checksums
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.layout.partial import RowShape, row_shape
from kvoffload.tiers.base import Outcome, TierEntry, TierJob, Verb
from kvoffload.tiers.chunk_form import form_of
from kvoffload.tiers.fs.options import FsTierConfig
from kvoffload.tiers.fs.tier import FsTier

LAYERS, KV_HEADS, HEAD_BYTES = 32, 8, 256
SHAPES = {"16 tokens": (16, 1), "128 tokens": (128, 1), "16 × 16 tokens": (16, 16)}
"""Name → (tokens of a block, blocks of a chunk): rows of 2, 16 and 32 MiB."""
WAYS = (1, 2, 4, 8)
OURS, WHOLE, PLAIN, SINGLE = (
    "FsTier, ranges",
    "FsTier, whole chunks",
    "plain preadv of the ranges",
    "one piece",
)
THREADS, IN_FLIGHT, JOB_BYTES = 16, 8, 32 << 20
ROUNDS = 5
SETTLE_S = 1.0
PAUSE_S = 1e-4


def layout_of(name: str, tp: int) -> CanonicalLayout:
    """The layout of a TP size."""
    tokens, per_chunk = SHAPES[name]
    page = AttentionPage(KV_HEADS, (HEAD_BYTES, HEAD_BYTES), tokens)
    layers = tuple(CanonicalLayer(f"layer.{number}", page) for number in range(LAYERS))
    return CanonicalLayout(layers, per_chunk, ParallelSizes(tp=tp))


def shape_of(name: str, tp: int) -> RowShape:
    """What a rank in the middle needs."""
    layout = layout_of(name, tp)
    return row_shape(layout, layout.row_bytes, (tp // 2,))


def open_tier(root: Path, shape: RowShape) -> FsTier:
    """A tier on a directory; one directory for each length of pieces."""
    fields = {"layout_family": "canonical", "layout_version": 1, "model": "benchmark"}
    namespace = Namespace("benchmark", json.dumps(fields, sort_keys=True, separators=(",", ":")))
    config = FsTierConfig(root_dir=str(root), max_bytes=1 << 40, min_free_bytes=0, threads=THREADS)
    return FsTier(config, namespace, (shape,), clock=MonotonicClock(), wall_clock=WallClock())


class Work:
    """The chunks of one shape, in memory and on the disk."""

    def __init__(self, base: Path, name: str, buffer: memoryview) -> None:
        self.name = name
        self.row_bytes = layout_of(name, 1).row_bytes
        self.count = len(buffer) // self.row_bytes
        self.keys = [make_offload_key(hashlib.sha256(b"%d" % i).digest(), 0) for i in range(self.count)]
        self.rows = [buffer[i * self.row_bytes : (i + 1) * self.row_bytes] for i in range(self.count)]
        self.root = base / name.replace(" ", "_")
        self.run(self.root, shape_of(name, 1), Verb.STORE)
        os.sync()

    def run(self, root: Path, shape: RowShape, verb: Verb) -> tuple[float, int]:
        """(seconds, bytes read) of storing or loading all chunks."""
        tier = open_tier(root, shape)
        per_job = max(1, JOB_BYTES // self.row_bytes)
        waiting = deque(range(i, min(i + per_job, self.count)) for i in range(0, self.count, per_job))
        running = 0
        started = time.perf_counter()
        while waiting or running:
            while waiting and running < IN_FLIGHT:
                chunks = waiting.popleft()
                entries = tuple(TierEntry(self.keys[i], self.rows[i]) for i in chunks)
                assert tier.submit(TierJob(chunks.start + 1, verb, entries))
                running += 1
            for report in tier.poll():
                assert set(report.outcomes.values()) == {Outcome.DONE}, report
                running -= 1
            time.sleep(PAUSE_S)
        seconds = time.perf_counter() - started
        read = dict(tier.stats().counters).get("read_bytes", 0)
        tier.shutdown()
        return seconds, read

    def plain(self, shape: RowShape) -> float:
        """Seconds of reading the exact ranges of all chunks, without anything else."""
        tier = open_tier(self.root, shape)
        paths = [tier._around.place.path_of(key) for key in self.keys]  # noqa: SLF001
        tier.shutdown()
        ranges = shape.ranges or ((0, self.row_bytes),)
        begin = form_of(shape).header_bytes

        def read(i: int) -> None:
            fd = os.open(paths[i], os.O_RDONLY | os.O_DIRECT)
            for start, length in ranges:
                assert os.preadv(fd, [self.rows[i][start : start + length]], begin + start) == length
            os.close(fd)

        with ThreadPoolExecutor(THREADS) as threads:
            started = time.perf_counter()
            list(threads.map(read, range(self.count)))
            return time.perf_counter() - started


def measure_parts(work: Work) -> list[common.Row]:
    """Rows of the parts."""
    shapes = {f"1/{tp}" if tp > 1 else "whole": shape_of(work.name, tp) for tp in WAYS}
    read: dict[str, float] = {}

    def ours() -> dict[str, float]:
        rates = {}
        for case, shape in shapes.items():
            seconds, size = work.run(work.root, shape, Verb.LOAD)
            rates[case] = work.count / seconds
            read[case] = size / (work.count * shape.needed_bytes)
        return rates

    def whole() -> dict[str, float]:
        return {case: work.count / work.run(work.root, shapes["whole"], Verb.LOAD)[0] for case in shapes}

    def plain() -> dict[str, float]:
        return {case: work.count / work.plain(shape) for case, shape in shapes.items()}

    values = common.interleave(ROUNDS, {OURS: ours, WHOLE: whole, PLAIN: plain})
    return [
        renamed(
            common.row(case, "chunks/s", values, (OURS, WHOLE, PLAIN)),
            f"{work.name}: {case} ({read[case]:.2f})",
        )
        for case in shapes
    ]


def measure_pieces(base: Path, work: Work) -> list[common.Row]:
    """Rows of storing and loading whole rows: in pieces, and as one."""
    pieces = shape_of(work.name, 1)
    shapes = {OURS: pieces, SINGLE: RowShape(work.row_bytes)}
    total = work.count * work.row_bytes / 1e9

    def run(shape: RowShape) -> dict[str, float]:
        root = Path(tempfile.mkdtemp(dir=base))
        rates = {verb.value: total / work.run(root, shape, verb)[0] for verb in (Verb.STORE, Verb.LOAD)}
        started = time.thread_time()
        for row in work.rows:
            piece_checksums(row, form_of(shape).piece_bytes)
        rates["checksums"] = total / (time.thread_time() - started)
        shutil.rmtree(root)
        os.sync()
        time.sleep(SETTLE_S)
        return rates

    runs: dict[str, Callable[[], dict[str, float]]] = {
        who: functools.partial(run, shape) for who, shape in shapes.items()
    }
    values = common.interleave(ROUNDS, runs)
    size = form_of(pieces).piece_bytes >> 10
    return [
        renamed(
            common.row(case, "GB/s", values, (OURS, SINGLE, None)),
            f"{work.name}: {case}, pieces of {size} KiB",
        )
        for case in ("store", "load", "checksums")
    ]


def renamed(row: common.Row, case: str) -> common.Row:
    """The same under another name."""
    return common.Row(**{**{name: getattr(row, name) for name in row.__slots__}, "case": case})


def print_table(rows: Sequence[common.Row]) -> None:
    """For people."""
    print(
        f"{'case':42} {'unit':9} {'ours':>9} {'whole/one':>10} {'plain':>9} {'ours/w.':>8} {'ours/plain':>10}"
    )
    for row in rows:
        plain = f"{row.limit:9.1f} " if row.limit else f"{'-':>9} "
        ratio = f"{row.ours / row.limit:10.2f}" if row.limit else f"{'-':>10}"
        print(
            f"{row.case:42} {row.unit:9} {row.ours:9.2f} {row.peer or 0:10.2f} {plain}{row.ours / (row.peer or 1):8.2f} {ratio}"
        )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="256 MiB of chunks in place of 1 GiB")
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="on the disk in question")
    arguments = parser.parse_args()
    total = (256 if arguments.quick else 1024) << 20
    if shutil.disk_usage(arguments.dir).free < 6 * total:
        parser.error(
            f"{arguments.dir} has less than {6 * total >> 30} GiB free; give another --dir or --quick"
        )
    buffer = memoryview(mmap.mmap(-1, total))
    for offset in range(0, total, 1 << 20):
        buffer[offset : offset + (1 << 20)] = os.urandom(4096) * 256
    base = Path(tempfile.mkdtemp(prefix="partial-reads-", dir=arguments.dir))
    rows: list[common.Row] = []
    try:
        for name in SHAPES:
            work = Work(base, name, buffer)
            rows += measure_parts(work) + measure_pieces(base, work)
            shutil.rmtree(work.root)
    finally:
        shutil.rmtree(base)
    if arguments.json:
        common.emit(rows, as_json=True)
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
