"""`namespace.json`: what the fingerprint of a namespace's directory is made of, for people and for a check.

The directory's name carries 16 characters of the digest. The file carries all of it and every field, so that two
configurations that should have met can be compared, and a directory that was renamed by hand is noticed.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import Namespace
from kvoffload.layout.chunk_format import FORMAT_VERSION, ChunkIdentity
from kvoffload.tiers.fs.directory import GONE, NAMESPACE_FILE
from kvoffload.tiers.fs.disk import DiskIO

_KIND = "kvoffload namespace"
_MAX_FILE_BYTES = 16 * 1024**2
NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a text as JSON of a known shape raises if it is another one: also infinite numbers, and brackets without end."""


def identity_of(namespace: Namespace) -> ChunkIdentity:
    """What the headers of all chunks of a namespace say."""
    fields = json.loads(namespace.fields_json)
    return ChunkIdentity(
        namespace_digest=bytes.fromhex(namespace.digest),
        layout_family=str(fields.get("layout_family", "")),
        layout_version=int(fields.get("layout_version", 0)),
    )


def read_namespace(disk: DiskIO, directory: str) -> Namespace | None:
    """The namespace that a directory says it is; None if it says nothing that can be read.

    Raises:
        OSError: it is there and cannot be opened or read.
    """
    text = read_namespace_text(disk, directory)
    return None if text is None else parse_namespace(text)


def read_namespace_text(disk: DiskIO, directory: str, name: str = NAMESPACE_FILE) -> bytes | None:
    """What the file holds, whatever that is; None if there is none, or none of a sensible size. Raises OSError."""
    try:
        fd = disk.open(f"{directory}/{name}", os.O_RDONLY)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    try:
        size = disk.fstat(fd).st_size
        if not 0 < size <= _MAX_FILE_BYTES:
            return None
        buffer = memoryview(bytearray(size))
        return bytes(buffer[: disk.read_into(fd, [buffer])])
    finally:
        disk.close(fd)


def parse_namespace(text: bytes) -> Namespace | None:
    """The namespace that a file of this content describes; None for any other content."""
    try:
        found = json.loads(text)
        if found["kind"] != _KIND or not isinstance(found["fields"], dict):
            return None
        fields_json = json.dumps(found["fields"], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return Namespace(model_name=str(found["model"]), fields_json=fields_json)
    except NOT_OURS:
        return None


def check_namespace(found: Namespace | None, namespace: Namespace, directory: str) -> None:
    """Refuse a directory that says it is another namespace; one that says nothing is none.

    Raises:
        ConfigError: with one line for every field that differs.
    """
    if found is None or found.digest == namespace.digest:
        return
    differences = "; ".join(namespace.differences(found))
    raise ConfigError(
        f"{directory} belongs to another configuration than this engine's ({differences}); "
        "nothing in it is used. Move the directory away, or give another root_dir"
    )


def namespace_text(namespace: Namespace) -> bytes:
    """What the file of a namespace holds."""
    content = {
        "kind": _KIND,
        "chunk_format_version": FORMAT_VERSION,
        "model": namespace.model_name,
        "digest": namespace.digest,
        "fields": json.loads(namespace.fields_json),
    }
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"


def write_namespace(disk: DiskIO, directory: str, namespace: Namespace, temp_name: str) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    text = namespace_text(namespace)
    temp = f"{directory}/{temp_name}"
    fd = disk.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            disk.write_from(fd, [memoryview(text)])
        finally:
            disk.close(fd)
        disk.rename(temp, f"{directory}/{NAMESPACE_FILE}")
    except OSError:
        with suppress(OSError):
            disk.unlink(temp)
        raise
