"""A process of its own that has the rows of one tensor-parallel rank only, and loads them from a store of whole chunks.

python fs_rank_child.py ROOT RANK     prints what it has read, as JSON; fails if a byte is not that of an engine without parallelism
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from fs_support import Store, make_key, make_namespace, make_rows

from kvoffload.config.pages import AttentionPage, HeadOrder
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.layout.partial import row_shape
from kvoffload.testing.layout_engine import GARBAGE, LayoutEngine, position_bytes, slice_of
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.types import Direction

CHUNKS, PER_CHUNK, LAYERS = 6, 2, 4
BLOCKS = CHUNKS * PER_CHUNK
KEYS: list[OffloadKey] = [make_key(f"chunk {number}") for number in range(CHUNKS)]
ENTRIES = [(block, *divmod(block, PER_CHUNK)) for block in range(BLOCKS)]
"""(block, row, position in it)."""


def layout_of(tp: int, order: HeadOrder = HeadOrder.HND) -> CanonicalLayout:
    """Four layers of 8 heads: 64 KiB a block."""
    page = AttentionPage(kv_heads=8, parts=(256, 256), block_tokens=16, order=order)
    layers = tuple(CanonicalLayer(f"layer.{number}", page) for number in range(LAYERS))
    return CanonicalLayout(layers, PER_CHUNK, ParallelSizes(tp=tp))


def rows_of(layout: CanonicalLayout) -> tuple[list[memoryview], np.ndarray]:
    """Rows that nobody has written, and the same as one array."""
    rows = make_rows(CHUNKS, layout.row_bytes)
    table = np.frombuffer(rows[0].obj, np.uint8)[: CHUNKS * layout.row_bytes].reshape(CHUNKS, -1)
    table[:] = GARBAGE
    return rows, table


def open_store(root: Path, layout: CanonicalLayout, ranks: range) -> Store:
    """A tier of an engine, or of a node of it, that holds these ranks."""
    namespace = make_namespace(layout_family="canonical", page=layout.signature())
    return Store(
        root, namespace=namespace, payload_bytes=(row_shape(layout, layout.row_bytes, ranks),), threads=4
    )


def store_all(root: Path) -> None:
    """What an engine without parallelism stores."""
    layout = layout_of(1)
    rows, table = rows_of(layout)
    LayoutEngine(layout, position_bytes(layout, BLOCKS), BLOCKS).copy(Direction.STORE, ENTRIES, table)
    with open_store(root, layout, range(1)) as store:
        assert store.submit(Verb.STORE, KEYS, rows)
        assert set(store.wait()[0].outcomes.values()) == {Outcome.DONE}


def read_chars() -> int:
    """Bytes that this process has read by system calls, as the kernel counts them."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def load_rank(root: Path, tp: int, rank: int, order: HeadOrder) -> dict[str, int]:
    """Load, copy to the device, compare."""
    layout = layout_of(tp, order)
    truth = position_bytes(layout, BLOCKS)
    rows, table = rows_of(layout)
    with open_store(root, layout, range(rank, rank + 1)) as store:
        store.wait_for_walk()
        before = read_chars()
        assert store.submit(Verb.LOAD, KEYS, rows)
        (report,) = store.wait()
        read = read_chars() - before
        assert set(report.outcomes.values()) == {Outcome.DONE}, report
        counted = store.counters()["read_bytes"]
    engine = LayoutEngine(layout, None, BLOCKS)
    engine.copy(Direction.LOAD, ENTRIES, table, ranks=[rank])
    for layer, found in zip(layout.of_rank(rank), engine.device[rank], strict=True):
        right = slice_of(layout.layers[layer.number].page, layout.sizes, rank, truth[layer.number])
        np.testing.assert_array_equal(found, right)
    compare_rows(layout, rank, table)
    return {"moved": report.moved_bytes, "counted": counted, "kernel": read, "whole": table.size}


def compare_rows(layout: CanonicalLayout, rank: int, table: np.ndarray) -> None:
    """The ranges hold what an engine without parallelism has there; elsewhere nothing false."""
    single = layout_of(1)
    whole = rows_of(single)[1]
    LayoutEngine(single, position_bytes(single, BLOCKS), BLOCKS).copy(Direction.STORE, ENTRIES, whole)
    for start, length in layout.byte_ranges(rank).tolist():
        np.testing.assert_array_equal(table[:, start : start + length], whole[:, start : start + length])
    assert ((table == whole) | (table == GARBAGE)).all()


if __name__ == "__main__":
    where, tp, rank, order = sys.argv[1:]
    print(json.dumps(load_rank(Path(where), int(tp), int(rank), HeadOrder(order))))
