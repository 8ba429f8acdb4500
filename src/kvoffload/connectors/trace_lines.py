"""What both recorders write: lines of a trace (JSON), and names of blocks that tell nothing. No files, no threads here."""

from __future__ import annotations

import hashlib
import json
import secrets

_HASH_BYTES = 8


class BlockNames:
    """Names for an engine's block hashes, under a secret that is forgotten with this object.

    Who knows a prompt cannot find it in a trace, nor one trace's prompts in another.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def name(self, block_hash: bytes, salt: bytes = b"") -> str:
        """16 hexadecimal digits: the same for the same hash and salt, as long as this object lives."""
        return hashlib.blake2b(salt + block_hash, digest_size=_HASH_BYTES, key=self._key).hexdigest()


def trace_line(fields: dict[str, object]) -> bytes:
    """A line of a trace, with its end."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
