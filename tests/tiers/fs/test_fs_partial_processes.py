"""Processes that have the rows of one rank each load from a directory that an engine without parallelism has written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fs_rank_child import CHUNKS, layout_of, store_all

from kvoffload.tiers.chunk_form import WASTE_BYTES

CHILD = Path(__file__).parent / "fs_rank_child.py"


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("tp", "orders"), [(2, ("HND", "NHD")), (4, ("HND", "HND", "NHD", "HND"))])
def test_ranks_on_nodes_of_their_own_read_their_shares_and_get_the_bytes_of_an_unsharded_engine(
    tmp_path: Path, tp: int, orders: tuple[str, ...]
) -> None:
    assert layout_of(1).signature() == layout_of(tp).signature()
    store_all(tmp_path)
    children = [start(tmp_path, tp, rank, order) for rank, order in enumerate(orders)]
    for child in children:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, err[-3000:]
        found = json.loads(out)
        share = found["whole"] // tp
        assert found["moved"] == share
        # For each chunk a header, and what lies between it and a share that begins near to it.
        assert share + CHUNKS * 4096 <= found["counted"] <= share + CHUNKS * (4096 + WASTE_BYTES)
        # And what else a tier reads now and then: the usage record.
        assert found["counted"] <= found["kernel"] < found["counted"] + 100_000, found
