"""What the tests of the fs tier share: small stores, and a disk whose every call can fail, wait or be counted."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvoffload.clock import MonotonicClock, WallClock
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.layout.chunk_format import ChunkHeader, checksum, decode_header, file_bytes, header_bytes
from kvoffload.layout.partial import RowShape
from kvoffload.testing.tier_driver import is_part_of
from kvoffload.tiers.base import Outcome, TierEntry, TierJob, TierReport, Verb
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.options import FsTierConfig
from kvoffload.tiers.fs.tier import FsTier
from kvoffload.types import LookupResult

PAYLOAD_BYTES = 8192
FILE_BYTES = file_bytes(PAYLOAD_BYTES)
PATIENCE_S = 20.0
UNTOUCHED = b"\x5a"
CALLS = [name for name in vars(DiskIO) if not name.startswith("_")]


def make_namespace(model: str = "org/model", **fields: object) -> Namespace:
    values = {"model": model, "layout_family": "direct", "layout_version": 1, **fields}
    return Namespace(model, json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True))


def make_key(number: int | str, group: int = 0) -> OffloadKey:
    return make_offload_key(hashlib.sha256(f"key {number}".encode()).digest(), group)


def make_keys(count: int, salt: str = "") -> list[OffloadKey]:
    return [make_key(f"{salt}{number}") for number in range(count)]


def payload_of(key: OffloadKey, size: int = PAYLOAD_BYTES) -> bytes:
    """The bytes of a chunk: anybody can make them from its key, so wrong bytes are noticed anywhere."""
    start = hashlib.sha256(b"payload" + key).digest()
    return (start * (size // len(start) + 1))[:size]


def make_rows(count: int, size: int = PAYLOAD_BYTES) -> list[memoryview]:
    """Page-aligned rows."""
    memory = memoryview(mmap.mmap(-1, max(1, count) * size))
    return [memory[i * size : (i + 1) * size] for i in range(count)]


class FaultyDisk(DiskIO):
    """Counts every call, and first calls what the test has put in `faults[name]` with the same arguments."""

    def __init__(self) -> None:
        self.faults: dict[str, Callable[..., None]] = {}
        self.calls: Counter[str] = Counter()
        self.threads: set[str] = set()

    @contextmanager
    def fault(self, name: str, error: int | Callable[..., None], match: str = "") -> Iterator[None]:
        """Make a call fail with an errno (only for files whose path contains `match`), or do something else."""

        def fail(*arguments: object) -> None:
            assert isinstance(error, int)
            target = arguments[0]
            path = str(Path(f"/proc/self/fd/{target}").readlink()) if isinstance(target, int) else str(target)
            if match in path:
                raise OSError(error, os.strerror(error))

        self.faults[name] = fail if isinstance(error, int) else error
        try:
            yield
        finally:
            del self.faults[name]


def _intercepted(name: str) -> Any:
    real = getattr(DiskIO, name)

    def call(self: FaultyDisk, *arguments: object, **options: object) -> object:
        self.calls[name] += 1
        self.threads.add(threading.current_thread().name)
        if name in self.faults:
            self.faults[name](*arguments)
        return real(self, *arguments, **options)

    return call


for _name in CALLS:
    setattr(FaultyDisk, _name, _intercepted(_name))


class Store:
    """A tier with the patience of a test: submits, waits, and checks the bytes of what was loaded."""

    def __init__(
        self,
        root: Path,
        *,
        disk: DiskIO | None = None,
        namespace: Namespace | None = None,
        payload_bytes: Sequence[int | RowShape] = (PAYLOAD_BYTES,),
        wall_clock: Any = None,
        clock: Any = None,
        **options: Any,
    ) -> None:
        options = {"min_free_bytes": 0, "threads": 4, **options}
        self.root = root
        self.shapes = [RowShape(row) if isinstance(row, int) else row for row in payload_bytes]
        self.payload_bytes = [shape.row_bytes for shape in self.shapes]
        self.tier = FsTier(
            FsTierConfig(root_dir=str(root), **options),
            namespace or make_namespace(),
            payload_bytes,
            clock=clock or MonotonicClock(),
            wall_clock=wall_clock or WallClock(),
            disk=disk,
        )
        self.directory = Path(self.tier._around.place.directory)
        self._jobs = 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.tier.shutdown()

    def path_of(self, key: OffloadKey) -> Path:
        return Path(self.tier._around.place.path_of(key))

    def submit(
        self, verb: Verb, keys: Sequence[OffloadKey], rows: Sequence[memoryview] | None = None
    ) -> int | None:
        self._jobs += 1
        if rows is None:
            rows = [memoryview(b"")] * len(keys)
        entries = tuple(TierEntry(key, row) for key, row in zip(keys, rows, strict=True))
        return self._jobs if self.tier.submit(TierJob(self._jobs, verb, entries)) else None

    def rows_for(self, keys: Sequence[OffloadKey], *, filled: bool) -> list[memoryview]:
        sizes = [self.payload_bytes[int.from_bytes(key[-4:], "big")] for key in keys]
        rows = [make_rows(1, size)[0] for size in sizes]
        for row in rows:
            row[:] = UNTOUCHED * len(row)
        if filled:
            for key, row in zip(keys, rows, strict=True):
                row[:] = payload_of(key, len(row))
        return rows

    def wait(self) -> list[TierReport]:
        assert self.tier.drain(PATIENCE_S)
        return self.tier.poll()

    def store(self, keys: Sequence[OffloadKey]) -> list[Outcome]:
        assert self.submit(Verb.STORE, keys, self.rows_for(keys, filled=True)) is not None
        (report,) = self.wait()
        return [report.outcomes[key] for key in keys]

    def load(self, keys: Sequence[OffloadKey]) -> list[Outcome]:
        rows = self.rows_for(keys, filled=False)
        assert self.submit(Verb.LOAD, keys, rows) is not None
        (report,) = self.wait()
        for key, row in zip(keys, rows, strict=True):
            if report.outcomes[key] is Outcome.DONE:
                self.check(key, row)
        return [report.outcomes[key] for key in keys]

    def check(self, key: OffloadKey, row: memoryview) -> None:
        """The right bytes where they are needed; elsewhere the right ones, or the row as it was."""
        ranges = self.shapes[int.from_bytes(key[-4:], "big")].ranges or ((0, len(row)),)
        assert is_part_of(bytes(row), payload_of(key, len(row)), ranges, UNTOUCHED), "wrong bytes were served"

    def delete(self, keys: Sequence[OffloadKey]) -> list[Outcome]:
        assert self.submit(Verb.DELETE, keys) is not None
        (report,) = self.wait()
        return [report.outcomes[key] for key in keys]

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """What the tier says in the end: asks again while it says RETRY."""
        deadline = time.monotonic() + PATIENCE_S
        while LookupResult.RETRY in (answers := self.tier.lookup(keys)):
            assert time.monotonic() < deadline, answers
            time.sleep(0.001)
        return answers

    def wait_for_walk(self) -> None:
        assert self.tier._upkeep._room.walked.wait(PATIENCE_S)

    def walk(self) -> None:
        """Walk now, in this thread."""
        self.wait_for_walk()
        upkeep = self.tier._upkeep
        upkeep._walker.walk(
            upkeep._around.wall_clock.now_s(), lambda: None, counts=not upkeep._options.read_only
        )

    def counters(self) -> dict[str, int]:
        return dict(self.tier.stats().counters)

    def files(self) -> set[str]:
        return {path.name for path in self.root.rglob("*.kv") if path.is_file()}

    def temps(self) -> list[Path]:
        return list(self.root.rglob("*.kvtmp"))


def to_version_1(path: Path) -> None:
    """What the version before pieces wrote for the same chunk."""
    data = path.read_bytes()
    header = decode_header(data)
    assert isinstance(header, ChunkHeader), header
    length = header_bytes(header.payload_bytes, header.piece_bytes)
    payload = data[length:]
    page = bytearray(data[:368]) + bytes(4096 - 368)
    page[8:16] = (1).to_bytes(4, "little") + (4096).to_bytes(4, "little")
    page[72:88] = checksum(payload[: header.payload_bytes])
    page[-16:] = checksum(page[:-16])
    path.write_bytes(bytes(page) + payload)


def disk_usage(root: Path) -> int:
    """Bytes of everything below a directory and of itself, as `du --apparent-size` counts."""
    total = os.lstat(root).st_size
    for directory, names, files in os.walk(root):
        for name in names + files:
            try:
                total += os.lstat(f"{directory}/{name}").st_size
            except FileNotFoundError:
                continue
    return total


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def record_of(root: Path) -> dict[str, Any]:
    """The values of the usage record."""
    return dict(json.loads((root / ".kvoffload" / "usage").read_text().partition("\n")[2]))


HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY
