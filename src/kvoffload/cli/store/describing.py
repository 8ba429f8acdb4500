"""A namespace, and what a survey found in it, as rows of a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping

from kvoffload.cli.store.output import seconds_of
from kvoffload.tiers.fs.store_root import NamespaceInfo, NamespaceState
from kvoffload.tiers.fs.survey import NamespaceSurvey


def what_it_is(info: NamespaceInfo) -> str:
    """The fields that a person asks for first, in one line."""
    fields = info.fields
    if not fields:
        return info.detail or "-"
    parts = [str(fields.get("kv_dtype") or "?")]
    layout = str(fields.get("layout_family") or "?")
    parts.append(f"{layout} v{fields.get('layout_version', '?')}")
    parallel = fields.get("parallel")
    if isinstance(parallel, Mapping):
        parts.extend(
            f"{name}{parallel[name]}" for name in ("tp", "pp", "pcp", "dcp") if _is_told(parallel, name)
        )
    else:
        # Left out of the fingerprint where the bytes do not depend on it.
        parts.append("any tp")
    tokens, blocks = fields.get("tokens_per_hash"), fields.get("blocks_per_chunk")
    if isinstance(tokens, int) and isinstance(blocks, int):
        parts.append(f"{tokens * blocks} tokens/chunk")
    groups = fields.get("groups")
    if isinstance(groups, list) and len(groups) != 1:
        parts.append(f"{len(groups)} groups")
    return ", ".join(parts)


def model_of(info: NamespaceInfo) -> str:
    """The model's name, from the description or else from the directory's name."""
    return info.namespace.model_name if info.namespace else info.name.rpartition("_")[0]


def state_text(info: NamespaceInfo) -> str:
    """The state, and what was found."""
    if info.state is NamespaceState.MISPLACED:
        return f"{info.state.value} ({info.detail})"
    return f"{info.state.value}: {info.detail}" if info.detail else info.state.value


def namespace_json(one: NamespaceSurvey) -> dict[str, object]:
    """Everything about a namespace."""
    info = one.info
    return {
        "name": info.name,
        "model": model_of(info),
        "digest": info.namespace.digest if info.namespace else info.digest_start,
        "state": info.state.value,
        "detail": info.detail,
        "chunks": one.chunks,
        "chunk_bytes": one.chunk_bytes,
        "directories": one.directories,
        "temp_files": len(one.temps),
        "temp_bytes": one.temp_bytes,
        "orphan_temp_files": sum(temp.is_orphan for temp in one.temps),
        "foreign_entries": one.foreign,
        "counted_bytes": one.counted_bytes,
        "oldest_use_s": seconds_of(one.oldest_ns),
        "newest_use_s": seconds_of(one.newest_ns),
        "fields": info.fields,
    }


def _is_told(parallel: Mapping[str, object], name: str) -> bool:
    """Whether to name it: tp always, the others where they are used."""
    return name in parallel and (name == "tp" or parallel[name] != 1)
