"""`namespace.json` in a directory: read as whatever it is, written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress

from kvoffload.keys.fingerprint import Namespace
from kvoffload.tiers.fs.directory import GONE, NAMESPACE_FILE
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.namespace_text import namespace_text, parse_namespace

_MAX_FILE_BYTES = 16 * 1024**2


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
