"""What shall be removed from a store, and why: pure plans over what a survey saw. Who removes is `cleaning.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kvoffload.tiers.fs.directory import DIRECTORY_BYTES, Leaf
from kvoffload.tiers.fs.store_root import NamespaceInfo
from kvoffload.tiers.fs.survey import Survey

_OUTER_CHARS = len("hh")


class Kind(Enum):
    """What is removed."""

    CHUNK = "chunk"
    TEMP = "temp"
    DIRECTORY = "directory"


class Reason(Enum):
    """Why it is removed."""

    DEAD_WRITER = "its writer is dead"
    TOO_OLD = "not used for too long"
    OVER_BOUND = "over the bound, least recently used"
    PURGED = "purged"
    EMPTY = "empty"
    DAMAGED = "damaged"


class Removal(NamedTuple):
    """One thing to remove. A tuple, because a plan may have a million of them."""

    path: str
    size_bytes: int
    kind: Kind
    reason: Reason
    used_ns: int
    """When it was used last, as the survey saw it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which chunks may stay."""

    max_bytes: int | None = None
    """Of everything that is counted in what was surveyed."""
    not_before_ns: int | None = None
    """Chunks that were not used since are too old."""
    everything: bool = False
    """No chunk stays."""


class _Chunk(NamedTuple):
    used_ns: int
    size_bytes: int
    namespace: int
    name: str


@dataclass(slots=True)
class Collector:
    """Gathers, during a survey, what a plan needs: give its `see` to `survey_store`."""

    chunks: list[_Chunk] = field(default_factory=list)
    paths: dict[str, int] = field(default_factory=dict)
    """Namespace directory → its number."""
    held: Counter[str] = field(default_factory=Counter)
    """Directory → how many entries keep it from being empty."""

    def see(self, info: NamespaceInfo, leaf: Leaf) -> None:
        """One directory. Only of a namespace that proves to be one, anything is planned."""
        if not info.is_ours or not leaf.path:
            return
        number = self.paths.setdefault(info.path, len(self.paths))
        directory = f"{info.path}/{leaf.path}"
        self.held[directory] += leaf.foreign + len(leaf.temps) + len(leaf.chunks)
        if len(leaf.path) > _OUTER_CHARS:
            self.held[directory.rpartition("/")[0]] += 1
        for file in leaf.chunks:
            self.chunks.append(_Chunk(file.mtime_ns, file.size_bytes, number, file.name))


def plan_collection(survey: Survey, collector: Collector, bounds: Bounds) -> Iterator[Removal]:
    """What has to go, in the order in which it goes: orphans, chunks from the least recently used on, empty directories.

    Args:
        survey: What is there.
        collector: Saw the same survey. Used up by this call.
        bounds: Which chunks may stay.
    """
    held = collector.held
    left_bytes = survey.bounded_bytes
    empty: list[str] = [path for path, count in held.items() if count == 0]
    for path in list(empty):
        empty.extend(_release(held, path.rpartition("/")[0]))
    for orphan in plan_temps(survey):
        left_bytes -= orphan.size_bytes
        empty.extend(_release(held, orphan.path.rpartition("/")[0]))
        yield orphan
    left_bytes -= len(empty) * DIRECTORY_BYTES
    namespaces = list(collector.paths)
    for chunk in sorted(collector.chunks):
        reason = _reason(chunk, bounds, left_bytes)
        if reason is None:
            break
        directory = f"{namespaces[chunk.namespace]}/{chunk.name[:2]}/{chunk.name[2:4]}"
        emptied = _release(held, directory)
        empty.extend(emptied)
        left_bytes -= chunk.size_bytes + len(emptied) * DIRECTORY_BYTES
        yield Removal(f"{directory}/{chunk.name}", chunk.size_bytes, Kind.CHUNK, reason, chunk.used_ns)
    # The inner ones first.
    for path in sorted(empty, key=len, reverse=True):
        yield Removal(path, DIRECTORY_BYTES, Kind.DIRECTORY, Reason.EMPTY, 0)


def plan_temps(survey: Survey) -> Iterator[Removal]:
    """The temporary files that nobody will finish, of namespaces that prove to be ones."""
    for one in survey.namespaces:
        if not one.info.is_ours:
            continue
        for temp in one.temps:
            if temp.is_orphan:
                yield Removal(temp.path, temp.size_bytes, Kind.TEMP, Reason.DEAD_WRITER, temp.mtime_ns)


def _reason(chunk: _Chunk, bounds: Bounds, left_bytes: int) -> Reason | None:
    """Why a chunk has to go; None: it may stay, and so may all that were used later."""
    if bounds.everything:
        return Reason.PURGED
    if bounds.not_before_ns is not None and chunk.used_ns < bounds.not_before_ns:
        return Reason.TOO_OLD
    if bounds.max_bytes is not None and left_bytes > bounds.max_bytes:
        return Reason.OVER_BOUND
    return None


def _release(held: Counter[str], directory: str) -> list[str]:
    """One entry leaves a directory; returns the directories that are empty then, itself and the one above."""
    emptied = []
    while directory in held:
        held[directory] -= 1
        if held[directory] > 0:
            break
        emptied.append(directory)
        directory = directory.rpartition("/")[0]
    return emptied


def totals(removals: Iterable[Removal]) -> dict[Kind, tuple[int, int]]:
    """Kind → (how many, their bytes)."""
    found = dict.fromkeys(Kind, (0, 0))
    for one in removals:
        count, size = found[one.kind]
        found[one.kind] = count + 1, size + one.size_bytes
    return found
