"""The names of everything that one namespace has in an object store, and how long its chunks are.

<model>_<digest>/namespace.json          what the fingerprint is made of
<model>_<digest>/hh/hh/<hash>_g<n>.kv    one chunk
<model>_<digest>/packs/hh/<digest>.pack  several chunks, one behind the other; named by what is in it
<model>_<digest>/journal/<time>-<who>    which objects came and went
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvoffload.errors import KvError
from kvoffload.keys.file_mapper import FileMapper
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey, group_index_of
from kvoffload.layout.chunk_format import checksum
from kvoffload.layout.partial import RowShape
from kvoffload.tiers.chunk_form import ChunkForm, form_of
from kvoffload.tiers.namespace_text import identity_of

_TIME_DIGITS = 16
_PACK = re.compile(r"packs/([0-9a-f]{2})/([0-9a-f]{32})\.pack")
_JOURNAL = re.compile(r"journal/([0-9]{16})-[0-9a-f]{8,32}(-[0-9]{1,9})?")
_MICROSECONDS = 1_000_000


class ObjPlace:
    """Names and lengths.

    Args:
        namespace: The engine's.
        rows: Bytes of a chunk, or the shape of its row, for every group id; 0 bytes for those that the engine does not
            offload.
    """

    def __init__(self, namespace: Namespace, rows: Sequence[int | RowShape]) -> None:
        self._forms = tuple(map(form_of, rows))
        assert any(form.payload_bytes for form in self._forms), "a store needs at least one group"
        self.namespace = namespace
        self.identity = identity_of(namespace)
        self.base = namespace.directory_name
        self.namespace_file = f"{self.base}/namespace.json"
        self.journal = f"{self.base}/journal"
        self._mapper = FileMapper(namespace)

    def form_of(self, key: OffloadKey) -> ChunkForm:
        """How a chunk lies in its object, and which parts of it this engine reads."""
        return self._forms[group_index_of(key)]

    def payload_bytes_of(self, key: OffloadKey) -> int:
        """Bytes of a chunk's payload."""
        return self.form_of(key).payload_bytes

    def file_bytes_of(self, key: OffloadKey) -> int:
        """Bytes of a chunk with header and padding."""
        return self.form_of(key).file_bytes

    @property
    def smallest_file_bytes(self) -> int:
        """Bytes of the smallest chunk with header and padding."""
        return min(form.file_bytes for form in self._forms if form.payload_bytes)

    def is_length_of(self, key: OffloadKey, length: int) -> bool:
        """Whether the engine has the group of a key, and its chunks are so long: also those of one piece, as in version 1."""
        group = group_index_of(key)
        is_known = group < len(self._forms) and self._forms[group].payload_bytes > 0
        return is_known and self._forms[group].has_length(length)

    def object_name(self, keys: Sequence[OffloadKey]) -> str:
        """The name of the object that holds these chunks in this order: equal names mean equal content."""
        if len(keys) == 1:
            return self._mapper.name_of(keys[0])
        # Lengths too: the same bytes must not be cut into other keys.
        digest = checksum(b"".join(len(key).to_bytes(2, "big") + key for key in keys)).hex()
        return f"{self.base}/packs/{digest[:2]}/{digest}.pack"

    def is_name_of(self, name: str, keys: Sequence[OffloadKey]) -> bool:
        """Whether an object of this name holds these chunks in this order. Never raises, whatever the keys are."""
        if len(keys) != 1:
            return bool(keys) and self.object_name(keys) == name
        try:
            return self._mapper.key_of(name) == keys[0]
        except KvError:
            return False

    def is_data(self, name: str) -> bool:
        """Whether this is the name of an object with chunks of this namespace."""
        inner = self._inner(name)
        found = _PACK.fullmatch(inner)
        if found:
            return found.group(2).startswith(found.group(1))
        try:
            self._mapper.key_of(name)
        except KvError:
            return False
        return True

    def journal_name(self, time_s: float, writer: str, number: int) -> str:
        """The name of a journal object: in the order of time, whoever writes it."""
        return f"{self.journal}/{round(time_s * _MICROSECONDS):0{_TIME_DIGITS}d}-{writer}-{number}"

    def journal_from(self, time_s: float) -> str:
        """A name before all journal objects of this time and later."""
        return f"{self.journal}/{max(0, round(time_s * _MICROSECONDS)):0{_TIME_DIGITS}d}"

    def journal_time_s(self, name: str) -> float | None:
        """When a journal object was written, by its writer's clock; None if it is none."""
        found = _JOURNAL.fullmatch(self._inner(name))
        return int(found.group(1)) / _MICROSECONDS if found else None

    def _inner(self, name: str) -> str:
        return name[len(self.base) + 1 :] if name.startswith(f"{self.base}/") else ""
