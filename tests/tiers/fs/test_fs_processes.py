"""Many processes on one directory, some of them killed: never a wrong byte, never beyond the cap, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fs_support import FILE_BYTES, MISS, Store, disk_usage, record_of, wait_until

from kvoffload.tiers.base import Outcome

CHILD = Path(__file__).parent / "fs_child.py"


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    return out


def test_three_busy_processes_never_exceed_the_cap_and_never_serve_wrong_bytes(tmp_path: Path) -> None:
    cap, most, seed = 700_000, 0, time.time_ns() % 10**6
    print(f"seed {seed}: python {CHILD} busy ROOT {cap} {seed} 150")
    children = [start("busy", tmp_path, cap, seed + n, 150) for n in range(3)]
    while any(child.poll() is None for child in children):
        most = max(most, disk_usage(tmp_path))
        time.sleep(0.005)
    outputs = [end(child) for child in children]
    assert most <= cap, f"{most} bytes were seen under a cap of {cap}"
    assert any("evicted" in out for out in outputs), outputs
    # Full use of the cap, and not a cap that shrinks by miscounting.
    assert most >= cap * 0.7, most
    with Store(tmp_path, max_bytes=cap) as store:
        store.walk()
        assert store.temps() == []
        assert record_of(tmp_path)["used_bytes"] >= disk_usage(tmp_path)


def test_after_200_kills_in_the_middle_of_stores_everything_verifies_and_is_accounted_for(
    tmp_path: Path,
) -> None:
    cap, seed, most = 3_000_000, time.time_ns() % 10**6, 0
    print(f"seed {seed}: python {CHILD} killed ROOT {cap} {seed} 100")
    children = [start("killed", tmp_path, cap, seed + n, 100) for n in range(2)]
    temps_seen = 0
    while any(child.poll() is None for child in children):
        most = max(most, disk_usage(tmp_path))
        names = [name for _, _, files in os.walk(tmp_path) for name in files]
        temps_seen = max(temps_seen, sum(name.endswith(".kvtmp") for name in names))
        time.sleep(0.02)
    for child in children:
        assert "killed 100" in end(child)
    assert most <= cap
    with Store(tmp_path, max_bytes=cap) as store:
        store.walk()
        # Every file that has a name is whole.
        chunks = list(store.tier.scan())
        assert len(chunks) > 20
        assert store.load([chunk.key for chunk in chunks]) == [Outcome.DONE] * len(chunks)
        assert {chunk.size_bytes for chunk in chunks} == {FILE_BYTES}
        assert "corrupt" not in store.counters()
        # What the dead were writing has been swept, and what they were promised is free again.
        wait_until(lambda: store.temps() == [])
        store.tier._share.show()
        writer = store.tier._around.place.writer.text
        record = record_of(tmp_path)
        assert record["writers"].keys() == {writer}
        # (They were promised in pages; only what this process holds may be on top.)
        assert record["used_bytes"] - record["writers"][writer][0] <= disk_usage(tmp_path) + 64 * 1024
        assert record["used_bytes"] >= disk_usage(tmp_path)
        assert store.store([chunk.key for chunk in chunks[:5]]) == [Outcome.DONE] * 5
        assert store.tier.clear()
        assert store.lookup([chunks[0].key]) == [MISS]
    assert temps_seen > 0, "no child was killed in the middle of a store; the test proves nothing"
