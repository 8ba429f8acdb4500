"""Deletions: an object goes, or is written anew without the chunks that shall go. One at a time in a process."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import Damage
from kvoffload.tiers.base import Outcome
from kvoffload.tiers.executor import Slice, SliceEnd
from kvoffload.tiers.obj.announcer import Announcer
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.catalogue import HeldObject
from kvoffload.tiers.obj.follower import Follower
from kvoffload.tiers.obj.journal import Came, Event, PackedChunk, Went
from kvoffload.tiers.obj.proof import prove
from kvoffload.tiers.obj.trouble import ObjectError, Trouble


class Deleting:
    """Carries out slices of deletions.

    Args:
        around: The store and what is known of it.
        announcer: Tells everybody.
        follower: Knows what others stored.
    """

    def __init__(self, around: Around, announcer: Announcer, follower: Follower) -> None:
        self._around = around
        self._announcer = announcer
        self._follower = follower
        self._turn = threading.Lock()
        """Two that rewrite one object at once would each bring back what the other took out."""

    def run(self, part: Slice) -> SliceEnd:
        """Delete the chunks of a slice."""
        keys = [entry.key for entry in part.entries]
        try:
            if any(self._around.catalogue.find(key) is None for key in keys):
                self._follower.refresh()
            self.remove(keys)
        except ObjectError:
            return SliceEnd(dict.fromkeys(keys, Outcome.FAILED), 0)
        return SliceEnd(dict.fromkeys(keys, Outcome.DONE), 0)

    def remove(self, keys: Sequence[OffloadKey]) -> None:
        """Delete chunks, those that are not there included. Raises ObjectError: then some may be left."""
        with self._turn:
            of_object: dict[str, set[OffloadKey]] = {}
            for key in keys:
                for name in self._around.catalogue.holders(key):
                    of_object.setdefault(name, set()).add(key)
            for name, unwanted in of_object.items():
                held = self._around.catalogue.object(name)
                if held is not None:
                    self._remove_from(held, unwanted)

    def _remove_from(self, held: HeldObject, unwanted: Collection[OffloadKey]) -> None:
        around = self._around
        generation = around.epoch.generation
        rest = [
            chunk for chunk in held.chunks if chunk.key not in unwanted and around.catalogue.find(chunk.key)
        ]
        came, parts = self._rest_of(held, rest) if rest else (None, [])
        names = [held.name] if came is None else [held.name, came.name]
        with around.names.holding(names):
            if came is not None:
                around.caller.put(came.name, parts, create=True)
            if self._note(held, came, generation):
                events: list[Event] = [] if came is None else [came]
                self._announcer.announce([*events, Went(held.name)])
                around.caller.delete([held.name])
            else:
                # What was stored since the reset is not to go with what was before it.
                around.caller.delete([name for name in names if around.catalogue.object(name) is None])

    def _note(self, held: HeldObject, came: Came | None, generation: int) -> bool:
        """Change the catalogue, unless the tier was cleared meanwhile."""
        around = self._around
        with around.epoch.lock:
            if around.epoch.is_clearing or around.epoch.generation != generation:
                return False
            # Before the old one is deleted: who finds nothing there any more looks for the new one here.
            if came is not None:
                around.catalogue.add(came, around.clock.now_s())
                around.counters.add("rewritten_objects")
            around.catalogue.remove([held.name])
        return True

    def _rest_of(self, held: HeldObject, rest: Sequence[PackedChunk]) -> tuple[Came | None, list[memoryview]]:
        """The object of what is left, and its bytes; None if there is nothing left."""
        around = self._around
        try:
            whole = around.caller.get_whole(held.name)
        except ObjectError as error:
            if error.trouble is Trouble.MISSING:
                return None, []
            raise
        moved: list[PackedChunk] = []
        parts: list[memoryview] = []
        at = 0
        for chunk in rest:
            data = whole[chunk.offset : chunk.offset + chunk.length]
            if len(data) < chunk.length or isinstance(prove(around.place, chunk.key, data), Damage):
                around.counters.add("damaged_reads")
                continue
            moved.append(PackedChunk(chunk.key, at, chunk.length))
            parts.append(data)
            at += chunk.length
        if not moved:
            return None, []
        name = around.place.object_name([chunk.key for chunk in moved])
        return Came(name, held.used_s, tuple(moved)), parts
