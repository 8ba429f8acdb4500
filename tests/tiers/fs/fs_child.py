"""A process of its own that uses a store until it is told to end, or is killed.

python fs_child.py busy ROOT CAP SEED ROUNDS     random stores, loads, deletions; exit status 0 if no byte was wrong
python fs_child.py killed ROOT CAP SEED KILLS    forks children that store, and kills each in the middle of it
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fs_support import Store, make_key

from kvoffload.tiers.base import Outcome, Verb

KEYS = 60


def busy(root: Path, cap: int, seed: int, rounds: int) -> None:
    """Random work; every loaded byte is checked by `Store.load`."""
    rng = random.Random(seed)
    with Store(root, max_bytes=cap, threads=4, scan_interval_s=0.2, touch_interval_s=0.01) as store:
        done = 0
        for _ in range(rounds):
            keys = [make_key(n) for n in rng.sample(range(KEYS), rng.randint(1, 8))]
            work = rng.random()
            if work < 0.5:
                store.store(keys)
            elif work < 0.85:
                done += store.load(keys).count(Outcome.DONE)
            elif work < 0.95:
                store.delete(keys[:2])
            else:
                store.lookup(keys)
        store.tier._index.check()
        counters = store.counters()
        assert "internal_errors" not in counters, counters
        assert "corrupt" not in counters, counters
        assert done > 0, counters
        print(counters)


def store_for_ever(root: Path, cap: int, seed: int, begun: int) -> None:
    """Writes a byte to the descriptor `begun` when it begins to store."""
    store = Store(root, max_bytes=cap, threads=4)
    keys = [make_key(f"{seed} {n}") for n in range(300)]
    rows = store.rows_for(keys[:50], filled=False)
    from fs_support import payload_of

    number = 0
    while True:
        part = [keys[(number + i) % len(keys)] for i in range(50)]
        for key, row in zip(part, rows, strict=True):
            row[:] = payload_of(key)
        store.submit(Verb.STORE, part, rows)
        if number == 0:
            os.write(begun, b"!")
        store.wait()
        number += 50


def killed(root: Path, cap: int, seed: int, kills: int) -> None:
    """Fork, let it store for a few milliseconds, kill it; again and again. The parent has no threads."""
    rng = random.Random(seed)
    for number in range(kills):
        # Not a time alone: on a busy machine the child would be killed before it has stored anything.
        begins, begun = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                store_for_ever(root, cap, seed * 1000 + number % 7, begun)
            finally:
                os._exit(1)
        os.close(begun)
        os.read(begins, 1)
        os.close(begins)
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"
    print("killed", kills)


if __name__ == "__main__":
    what, where, *numbers = sys.argv[1:]
    {"busy": busy, "killed": killed}[what](Path(where), *map(int, numbers))
