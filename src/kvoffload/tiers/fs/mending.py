"""Mends a namespace's description, but only from what proves to be that very description.

The fields cannot be worked out from the chunks: they carry a digest only. But a writer that was killed may have left the
description in a temporary file, and a torn one may still hold all of its fields. Both prove themselves by their digest.
"""

from __future__ import annotations

import json
import re

from kvoffload.keys.fingerprint import Namespace
from kvoffload.tiers.fs.directory import NAMESPACE_FILE
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.namespace_file import read_namespace_text, write_namespace
from kvoffload.tiers.fs.store_root import NamespaceInfo, NamespaceState, is_sound
from kvoffload.tiers.fs.writer import WriterId, writer_of_temp
from kvoffload.tiers.namespace_text import parse_namespace

_MENDABLE = (NamespaceState.UNDESCRIBED, NamespaceState.DAMAGED)
_FIELDS = re.compile(r'"fields"\s*:\s*(?=\{)')
_MODEL = re.compile(r'"model"\s*:\s*(?=")')


def mend_namespace(disk: DiskIO, info: NamespaceInfo, here: WriterId) -> bool:
    """Write `namespace.json` anew if its content can be proved; returns whether it was written.

    Raises:
        OSError: it cannot be written.
    """
    namespace = find_description(disk, info)
    if namespace is None:
        return False
    write_namespace(disk, info.path, namespace, here.temp_name(0))
    return True


def find_description(disk: DiskIO, info: NamespaceInfo) -> Namespace | None:
    """The description that belongs to this directory, from what is left of it; None if nothing proves to be it."""
    if info.state not in _MENDABLE:
        return None
    try:
        names = [entry.name for entry in disk.scandir(info.path)]
    except OSError:
        return None
    for name in (NAMESPACE_FILE, *filter(writer_of_temp, sorted(names))):
        namespace = _read(disk, info.path, name)
        if is_sound(namespace) and namespace is not None and namespace.directory_name == info.name:
            return namespace
    return None


def _read(disk: DiskIO, directory: str, name: str) -> Namespace | None:
    try:
        text = read_namespace_text(disk, directory, name)
    except OSError:
        return None
    if text is None:
        return None
    return parse_namespace(text) or _salvage(text.decode("utf-8", "replace"))


def _salvage(text: str) -> Namespace | None:
    """The fields, if they are whole, of a text whose rest is not."""
    fields, model = _value(_FIELDS, text), _value(_MODEL, text.partition('"fields"')[2]) or ""
    if not isinstance(fields, dict):
        return None
    own = fields.get("model", model)
    fields_json = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Namespace(model_name=str(own), fields_json=fields_json)


def _value(pattern: re.Pattern[str], text: str) -> object:
    match = pattern.search(text)
    if match is None:
        return None
    try:
        value: object = json.JSONDecoder().raw_decode(text, match.end())[0]
    except (ValueError, RecursionError):
        return None
    return value
