"""What `kvoffload stat` prints."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kvoffload.cli.store.describing import model_of, namespace_json, state_text
from kvoffload.cli.store.output import print_json, say, seconds_of, size_text, time_text, warn
from kvoffload.cli.store.usage_report import record_json, record_lines
from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import block_hash_of, group_index_of
from kvoffload.layout.chunk_format import ChunkHeader, Damage
from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.checking import PIECE_BYTES, ChunkCheck, Expected, check_chunk
from kvoffload.tiers.fs.directory import NAMESPACE_FILE, key_of_chunk_name
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.store_root import NamespaceInfo, StoreRoot, absolute, describe, open_root
from kvoffload.tiers.fs.survey import NamespaceSurvey, survey_store

_LEVELS_ABOVE_A_CHUNK = 3


def inspect(path: str, *, as_json: bool) -> bool:
    """Show what stands at a path; returns False for a damaged chunk.

    Raises:
        ConfigError: it is none of ours, or cannot be read.
    """
    place = Path(absolute(path))
    if key_of_chunk_name(place.name) is not None:
        return _inspect_chunk(place, as_json=as_json)
    if (place / NAMESPACE_FILE).exists() or _is_namespace_of_a_store(place):
        store = open_root(str(place.parent))
        _inspect_namespace(store, store.select(place.name)[0], as_json=as_json)
    elif place.exists() and not place.is_dir():
        raise ConfigError(
            f"{place} is not the name of a chunk (<hash>_g<group>.kv); give a store, a namespace or a chunk file"
        )
    else:
        _inspect_root(open_root(str(place)), as_json=as_json)
    return True


def _is_namespace_of_a_store(place: Path) -> bool:
    try:
        return any(info.name == place.name for info in open_root(str(place.parent)).namespaces)
    except ConfigError:
        return False


def _inspect_root(store: StoreRoot, *, as_json: bool) -> None:
    survey = survey_store(store, store.namespaces, Accounts(store).observer())
    record = store.read_record()
    if as_json:
        namespaces = [namespace_json(one) for one in survey.namespaces]
        print_json(
            {
                "kind": "store",
                "root": store.path,
                "counted_bytes": survey.counted_bytes,
                "record": record_json(record),
                "namespaces": namespaces,
                "errors": survey.errors,
            }
        )
        return
    chunks = sum(one.chunks for one in survey.namespaces)
    say(f"store          {store.path}")
    say(f"namespaces     {len(survey.namespaces)}")
    say(f"chunks         {chunks:,} ({size_text(sum(one.chunk_bytes for one in survey.namespaces))})")
    say(f"counted        {size_text(survey.counted_bytes)}")
    for line in record_lines(record, survey.counted_bytes):
        say(line)
    if record.usage is not None:
        for name, entry in sorted(record.usage.writers.items()):
            say(f"writer         {name}: {size_text(entry.promised_bytes)} promised")
    for one in survey.namespaces:
        say(f"namespace      {one.info.name}: {one.chunks:,} chunks, {state_text(one.info)}")
    for error in survey.errors:
        warn(error)


def _inspect_namespace(store: StoreRoot, info: NamespaceInfo, *, as_json: bool) -> None:
    survey = survey_store(store, (info,), Accounts(store).observer())
    one = survey.namespaces[0]
    if as_json:
        print_json({"kind": "namespace", "root": store.path, **namespace_json(one), "errors": survey.errors})
        return
    for name, value in _namespace_lines(one):
        say(f"{name:<15}{value}")
    for field, content in sorted(info.fields.items()):
        say(f"  {field:<20} {json.dumps(content)}")
    for error in survey.errors:
        warn(error)


def _namespace_lines(one: NamespaceSurvey) -> list[tuple[str, str]]:
    info = one.info
    orphans = sum(temp.is_orphan for temp in one.temps)
    return [
        ("namespace", info.path),
        ("model", model_of(info)),
        ("digest", info.namespace.digest if info.namespace else f"{info.digest_start}…"),
        ("state", state_text(info)),
        ("chunks", f"{one.chunks:,} ({size_text(one.chunk_bytes)})"),
        ("used", f"{time_text(one.oldest_ns)} to {time_text(one.newest_ns)}"),
        ("temp files", f"{len(one.temps)} ({size_text(one.temp_bytes)}), {orphans} of dead writers"),
        ("directories", f"{one.directories}"),
        ("foreign", f"{one.foreign} entries"),
    ]


def _inspect_chunk(place: Path, *, as_json: bool) -> bool:
    key = key_of_chunk_name(place.name)
    assert key is not None, place
    above = (
        place.parents[_LEVELS_ABOVE_A_CHUNK - 1]
        if len(place.parts) > _LEVELS_ABOVE_A_CHUNK + 1
        else place.parent
    )
    disk = DiskIO()
    info = describe(disk, str(above.parent), above.name)
    try:
        buffer = memoryview(bytearray(PIECE_BYTES))
        expected = Expected(key, info.identity, info.digest_start)
        check = check_chunk(disk, str(place), expected, buffer, lambda _size: None)
    except OSError as error:
        raise ConfigError(
            f"{place} cannot be read: {error.strerror or error}; nothing is known about it"
        ) from error
    if check is None:
        raise ConfigError(f"{place} does not exist, or is no regular file; give a chunk file")
    values: dict[str, object] = {
        "namespace": info.name,
        "namespace_state": info.state.value,
        "block_hash": block_hash_of(key).hex(),
        "group": group_index_of(key),
        **_file_values(check),
    }
    if as_json:
        print_json({"kind": "chunk", "path": str(place), **values})
    else:
        _print_chunk(place, values, check)
    return check.damage in (None, Damage.UNKNOWN_VERSION)


def _file_values(check: ChunkCheck) -> dict[str, object]:
    found: os.stat_result = check.found
    values: dict[str, object] = {
        "verdict": _verdict(check),
        "file_bytes": found.st_size,
        "used_s": seconds_of(found.st_mtime_ns),
    }
    header = check.header
    if isinstance(header, ChunkHeader):
        values |= {
            "header_namespace": header.identity.namespace_digest.hex(),
            "header_layout": f"{header.identity.layout_family} v{header.identity.layout_version}",
            "header_key": header.key.hex(),
            "format_version": header.version,
            "payload_bytes": header.payload_bytes,
            "piece_bytes": header.piece_bytes,
            "payload_checksum": header.payload_checksum.hex(),
            "created_s": seconds_of(header.created_ns),
        }
    return values


def _verdict(check: ChunkCheck) -> str:
    if check.damage is None:
        return "ok"
    return "later format" if check.damage is Damage.UNKNOWN_VERSION else f"damaged: {check.damage.value}"


def _print_chunk(place: Path, values: dict[str, object], check: ChunkCheck) -> None:
    shown_values = {
        **values,
        "file_bytes": size_text(check.found.st_size),
        "used_s": time_text(check.found.st_mtime_ns),
    }
    if check.header is not None:
        shown_values["payload_bytes"] = size_text(check.header.payload_bytes)
        shown_values["piece_bytes"] = size_text(check.header.piece_bytes)
        shown_values["created_s"] = time_text(check.header.created_ns)
    say(f"{'chunk':<18}{place}")
    for name, value in shown_values.items():
        say(f"{name.removesuffix('_s').replace('_', ' '):<18}{value}")
