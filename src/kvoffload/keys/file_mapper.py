"""Keys to names: the path of a chunk below a store's root, equal for a file system and an object store."""

from __future__ import annotations

from kvoffload.errors import KvError
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import (
    GROUP_BYTES,
    OffloadKey,
    block_hash_of,
    group_index_of,
    make_offload_key,
)

SUFFIX = ".kv"
_FAN_CHARS = 2
_MIN_HASH_BYTES = 4


class FileMapper:
    """Maps keys of one namespace to relative names and back.

    Two levels of 256 directories: 16 million chunks make leaves of about 256 entries, so no directory comes near
    the 4,096 entries above which listings get slow.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._base = namespace.directory_name

    @property
    def base(self) -> str:
        """Name of the namespace's directory: the first component of every name."""
        return self._base

    def name_of(self, key: OffloadKey) -> str:
        """`<base>/<hh>/<hh>/<hash>_g<group>.kv`, with `/` between the parts."""
        block_hash = block_hash_of(key)
        assert len(block_hash) >= _MIN_HASH_BYTES, block_hash
        text = block_hash.hex()
        fan = f"{text[:_FAN_CHARS]}/{text[_FAN_CHARS : 2 * _FAN_CHARS]}"
        return f"{self._base}/{fan}/{text}_g{group_index_of(key)}{SUFFIX}"

    def key_of(self, name: str) -> OffloadKey:
        """The key of a name that `name_of` made. Raises KvError for every other name (a foreign file)."""
        parts = name.split("/")
        stem, _, group = parts[-1].removesuffix(SUFFIX).rpartition("_g")
        try:
            key = make_offload_key(bytes.fromhex(stem), _group_number(group))
        except (ValueError, AssertionError, OverflowError) as error:
            raise KvError(f"{name!r} is not the name of a chunk") from error
        if len(stem) < 2 * _MIN_HASH_BYTES or self.name_of(key) != name:
            raise KvError(f"{name!r} is not the name of a chunk of {self._base!r}")
        return key


def _group_number(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2 ** (8 * GROUP_BYTES):
        raise ValueError(text)
    return number
