"""How fast are copies between device pages and host rows, on a CPU engine? GB/s of one worker thread.

Ours: `CPUCopier` with one layout after the other. Peer: the same copier and as many bytes in the direct layout. Limit: one
`np.copyto` of as many bytes between the same two pieces of memory. All three take turns in every round. Several ranks
at once are as many processes on one region; their peer and limit are as many processes, too.

    python benchmarks/copies.py [--json] [--quick]

Model: 32 layers, 8 KV heads of 128 bfloat16, blocks of 16 tokens, 8 blocks a chunk; MLA: 576 bfloat16 a token.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing as mp
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import common
from kvoffload.config.pages import AttentionPage, HeadOrder, LatentPage
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.direct import DirectLayout
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.messages import CopyJob, GroupCopies
from kvoffload.types import Direction, JobId, RequestId
from kvoffload.worker.copier_cpu import CPUCopier
from kvoffload.worker.pages import bind_group
from kvoffload.worker.pages_canonical import bind_canonical

OURS, DIRECT, LIMIT = "kvoffload CPUCopier", "direct layout", "np.copyto"
LAYERS, PER_CHUNK, ROUNDS, REPEATS = 32, 8, 7, 3
HND = AttentionPage(8, (256, 256), 16)
NHD = AttentionPage(8, (256, 256), 16, HeadOrder.NHD)
KEPT = AttentionPage(8, (256, 256), 16, HeadOrder.NHD, canonical_order=HeadOrder.NHD)
"""Tokens outside on both sides (`canonical_order`): nothing is transcoded."""
MLA = LatentPage((1152,), 16)


@dataclass(frozen=True)
class Case:
    """One thing to measure."""

    name: str
    page: AttentionPage | LatentPage
    tp: int = 1
    canonical: bool = True
    slab: bool = False
    scattered: bool = False
    """Blocks in no order, as in an engine that has run for a while."""
    ranks: tuple[int, ...] = (0,)


CASES = (
    Case("direct", HND, canonical=False),
    Case("direct scattered", HND, canonical=False, scattered=True),
    Case("direct slab", HND, canonical=False, slab=True),
    Case("TP1 HND", HND),
    Case("TP1 HND scattered", HND, scattered=True),
    Case("TP1 HND slab", HND, slab=True),
    Case("TP1 NHD", NHD),
    *(
        Case(f"TP{tp} {page.order.value}", page, tp, ranks=(tp - 1,))
        for tp in (2, 4, 8)
        for page in (HND, NHD)
    ),
    Case("TP1 NHD kept", KEPT),
    Case("TP2 NHD kept", KEPT, 2, ranks=(1,)),
    Case("TP4 NHD kept", KEPT, 4, ranks=(3,)),
    Case("MLA TP1", MLA),
    Case("MLA replicated TP4", MLA, 4),
    Case("TP2 HND both ranks", HND, 2, ranks=(0, 1)),
    Case("TP4 HND all ranks", HND, 4, ranks=(0, 1, 2, 3)),
    Case("TP8 HND all ranks", HND, 8, ranks=tuple(range(8))),
    Case("TP2 NHD both ranks", NHD, 2, ranks=(0, 1)),
    Case("MLA TP2 both ranks", MLA, 2, ranks=(0, 1)),
)


def memory(size: int, seed: int) -> np.ndarray:
    """Bytes that are there (no page fault is measured) and that child processes share."""
    found = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    found[:] = np.resize(np.random.default_rng(seed).integers(0, 256, 1 << 20, dtype=np.uint8), size)
    return found


class Side:
    """One rank's device memory and what it can do with the rows.

    Args:
        case: What is measured.
        rank: Whose side.
        total: Bytes of device memory.
    """

    def __init__(self, case: Case, rank: int, total: int) -> None:
        layers = tuple(CanonicalLayer(f"{i}", case.page) for i in range(LAYERS))
        self.layout = CanonicalLayout(layers, PER_CHUNK, ParallelSizes(tp=case.tp))
        self.page_bytes = self.layout.of_rank(rank)[0].mapping.page_bytes
        self.num_blocks = total // (LAYERS * self.page_bytes * PER_CHUNK) * PER_CHUNK
        self.case, self.rank = case, rank
        self.flat = memory(self.num_blocks * LAYERS * self.page_bytes, rank)
        blocks = np.arange(self.num_blocks)
        slots, positions = np.divmod(blocks, PER_CHUNK)
        if case.scattered:
            blocks = np.random.default_rng(0).permutation(blocks)
        self.part = GroupCopies(0, blocks, slots, positions)
        self.num_slots = self.num_blocks // PER_CHUNK

    def pages(self) -> list[np.ndarray]:
        """Layer-outermost pages, or one slab."""
        if self.case.slab:
            return [self.flat.reshape(self.num_blocks, -1)]
        return list(self.flat.reshape(LAYERS, self.num_blocks, self.page_bytes))

    def direct(self, rows: np.ndarray) -> CPUCopier:
        """The same bytes in the direct layout: a part of each row for every rank."""
        layout = DirectLayout(PER_CHUNK, len(self.case.ranks), LAYERS * self.page_bytes)
        table = rows[: self.num_slots * layout.row_bytes].reshape(self.num_slots, layout.row_bytes)
        return CPUCopier([bind_group(layout, self.case.ranks.index(self.rank), self.pages(), table)])

    def canonical(self, rows: np.ndarray) -> CPUCopier:
        """What this rank copies in the canonical layout."""
        table = rows[: self.num_slots * self.layout.row_bytes].reshape(self.num_slots, -1)
        return CPUCopier([bind_canonical(self.layout, self.rank, self.pages(), table)])

    def plain(self, rows: np.ndarray, direction: Direction) -> int:
        """As many bytes at once; every rank has a piece of the rows for itself."""
        start = self.case.ranks.index(self.rank) * self.flat.size
        ends = (rows[start : start + self.flat.size], self.flat)
        np.copyto(*(ends if direction is Direction.STORE else ends[::-1]))
        return self.flat.size


def run_job(copier: CPUCopier, part: GroupCopies, direction: Direction) -> int:
    outcome = copier.copy(CopyJob(JobId(0), RequestId("r"), direction, (part,)))
    assert not outcome.failed
    return outcome.copied_bytes


def works_of(side: Side, rows: np.ndarray) -> dict[str, Callable[[Direction], int]]:
    """What the three contenders do on one rank; returns bytes."""
    direct = partial(run_job, side.direct(rows), side.part)
    ours = partial(run_job, side.canonical(rows), side.part) if side.case.canonical else direct
    return {OURS: ours, DIRECT: direct, LIMIT: partial(side.plain, rows)}


def rate_alone(work: Callable[[Direction], int], direction: Direction) -> float:
    """GB/s."""
    started = time.perf_counter()
    copied = sum(work(direction) for _ in range(REPEATS))
    return copied / (time.perf_counter() - started) / 1e9


def serve(side: Side, rows: np.ndarray, pipe: object, barrier: object) -> None:
    """A rank as a process: copies when it is told to, together with the other."""
    works = works_of(side, rows)
    while True:
        asked = pipe.recv()  # type: ignore[attr-defined]
        if asked is None:
            return
        name, direction = asked
        barrier.wait()  # type: ignore[attr-defined]
        started = time.monotonic()
        copied = sum(works[name](direction) for _ in range(REPEATS))
        pipe.send((copied, started, time.monotonic()))  # type: ignore[attr-defined]


class Processes:
    """Several ranks at once."""

    def __init__(self, sides: list[Side], rows: np.ndarray) -> None:
        context = mp.get_context("fork")
        barrier = context.Barrier(len(sides))
        pairs = [context.Pipe() for _ in sides]
        self._pipes = [near for near, _ in pairs]
        self._processes = [
            context.Process(target=serve, args=(side, rows, far, barrier), daemon=True)
            for side, (_, far) in zip(sides, pairs, strict=True)
        ]
        for process in self._processes:
            process.start()

    def rate(self, name: str, direction: Direction) -> float:
        """GB/s of all together, from the first start to the last end."""
        for pipe in self._pipes:
            pipe.send((name, direction))
        copied, starts, ends = zip(*(pipe.recv() for pipe in self._pipes), strict=True)
        return sum(copied) / (max(ends) - min(starts)) / 1e9

    def close(self) -> None:
        """Let them end."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


def measure(case: Case, total: int) -> Iterator[common.Row]:
    """Two rows: store and load."""
    sides = [Side(case, rank, total // len(case.ranks)) for rank in case.ranks]
    parts = sum(side.flat.size for side in sides)
    rows = memory(max(sides[0].num_slots * sides[0].layout.row_bytes, parts), 9)
    processes = Processes(sides, rows) if len(sides) > 1 else None
    works = {} if processes else works_of(sides[0], rows)

    def both(name: str) -> dict[str, float]:
        return {
            direction.value: processes.rate(name, direction)
            if processes
            else rate_alone(works[name], direction)
            for direction in Direction
        }

    contenders = [OURS, LIMIT] + ([DIRECT] if case.canonical else [])
    for name in contenders:
        both(name)  # warm up
    values = common.interleave(ROUNDS, {name: partial(both, name) for name in contenders})
    if processes:
        processes.close()
    for direction in Direction:
        named = {
            name: {f"{direction.value} {case.name}": found[direction.value]} for name, found in values.items()
        }
        peer = DIRECT if case.canonical else None
        yield common.row(f"{direction.value} {case.name}", "GB/s", named, (OURS, peer, LIMIT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line, nothing else on stdout")
    parser.add_argument("--quick", action="store_true", help="64 MiB a copy instead of 256 MiB")
    parser.add_argument("--cases", nargs="*", default=[], help="only cases whose name contains one of these")
    arguments = parser.parse_args()
    total = (64 if arguments.quick else 256) << 20
    cases = [case for case in CASES if not arguments.cases or any(n in case.name for n in arguments.cases)]
    rows = [row for case in cases for row in measure(case, total)]
    common.emit(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
