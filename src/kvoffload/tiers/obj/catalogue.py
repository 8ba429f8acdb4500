"""What is in the store, as far as this process knows: key → place, object → chunks. In memory; asks nobody."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.obj.journal import Came, PackedChunk

_MAX_BAD = 10_000


class Location(NamedTuple):
    """Where a chunk is."""

    name: str
    offset: int
    length: int


class _Held:
    """One object."""

    __slots__ = ("chunks", "noted_s", "size_bytes", "used_s")

    def __init__(self, came: Came, noted_s: float) -> None:
        self.chunks = came.chunks
        self.size_bytes = came.size_bytes
        self.used_s = came.used_s
        self.noted_s = noted_s


class HeldObject(NamedTuple):
    """One object, as it was when asked for."""

    name: str
    size_bytes: int
    used_s: float
    chunks: tuple[PackedChunk, ...]
    noted_s: float
    """When this process learned of it."""


class Catalogue:
    """Key → place. Lookups read one dictionary without a lock; changes take one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._where: dict[OffloadKey, Location] = {}
        self._others: dict[OffloadKey, dict[str, Location]] = {}
        """Where else a chunk is: two engines may store one at the same moment in different packs."""
        self._objects: dict[str, _Held] = {}
        self._bad: dict[tuple[str, OffloadKey], None] = {}
        self._size_bytes = 0

    @property
    def chunks(self) -> int:
        """How many chunks can be found."""
        return len(self._where)

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects."""
        return self._size_bytes

    def find(self, key: OffloadKey) -> Location | None:
        """Where a chunk is; None if that is not known."""
        return self._where.get(key)

    def holders(self, key: OffloadKey) -> list[str]:
        """The names of all objects that have a chunk; of most chunks it is one."""
        with self._lock:
            at = self._where.get(key)
            return ([] if at is None else [at.name]) + list(self._others.get(key, ()))

    def add(self, came: Came, now_s: float) -> None:
        """An object is there. Of a chunk that is in two objects the later one counts."""
        with self._lock:
            self._forget(came.name)
            held = self._objects[came.name] = _Held(came, now_s)
            self._size_bytes += held.size_bytes
            for chunk in came.chunks:
                if (came.name, chunk.key) in self._bad:
                    continue
                before = self._where.get(chunk.key)
                if before is not None:
                    self._others.setdefault(chunk.key, {})[before.name] = before
                self._where[chunk.key] = Location(came.name, chunk.offset, chunk.length)

    def remove(self, names: Collection[str]) -> None:
        """Objects are gone."""
        with self._lock:
            for name in names:
                self._forget(name)
                for mark in [mark for mark in self._bad if mark[0] == name]:
                    del self._bad[mark]

    def set_bad(self, key: OffloadKey, name: str) -> None:
        """A chunk cannot be used, and its object stays: from now on it is not there."""
        with self._lock:
            self._bad[name, key] = None
            if len(self._bad) > _MAX_BAD:
                del self._bad[next(iter(self._bad))]
            self._drop(key, name)

    def is_bad(self, name: str) -> bool:
        """Whether an object holds something that cannot be used."""
        return any(mark[0] == name for mark in self._bad) if self._bad else False

    def touch(self, keys: Sequence[OffloadKey], now_s: float) -> None:
        """Count these as used; the first of them as the last used: a prompt's beginning is worth more than its end."""
        for position, key in enumerate(keys):
            at = self._where.get(key)
            held = self._objects.get(at.name) if at is not None else None
            if held is not None:
                held.used_s = max(held.used_s, now_s - position * 1e-6)

    def objects(self) -> list[HeldObject]:
        """All objects, the least recently used first."""
        with self._lock:
            found = [
                HeldObject(name, held.size_bytes, held.used_s, held.chunks, held.noted_s)
                for name, held in self._objects.items()
            ]
        return sorted(found, key=lambda one: one.used_s)

    def object(self, name: str) -> HeldObject | None:
        """One object; None if it is not known."""
        held = self._objects.get(name)
        return (
            None
            if held is None
            else HeldObject(name, held.size_bytes, held.used_s, held.chunks, held.noted_s)
        )

    def listed(self) -> Iterator[tuple[OffloadKey, int, float]]:
        """(key, bytes, last used) of every chunk that can be found."""
        for key, at in list(self._where.items()):
            held = self._objects.get(at.name)
            if held is not None:
                yield key, at.length, held.used_s

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._where.clear()
            self._others.clear()
            self._objects.clear()
            self._bad.clear()
            self._size_bytes = 0

    def _forget(self, name: str) -> None:
        held = self._objects.pop(name, None)
        if held is None:
            return
        self._size_bytes -= held.size_bytes
        for chunk in held.chunks:
            self._drop(chunk.key, name)

    def _drop(self, key: OffloadKey, name: str) -> None:
        """A chunk is not in this object any more; perhaps in another one."""
        others = self._others.get(key)
        at = self._where.get(key)
        if at is not None and at.name == name:
            if others:
                self._where[key] = others.pop(next(reversed(others)))
            else:
                del self._where[key]
        elif others:
            others.pop(name, None)
        if others is not None and not others:
            del self._others[key]
