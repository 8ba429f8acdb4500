"""The namespace: a digest of everything that changes the meaning of stored bytes, and of nothing else.

Two engines share chunks exactly when their namespaces are equal. Host, port, engine id, device ids and the
data-parallel index are not part of it; the parallel layout is only where the bytes depend on it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from kvoffload.config.schema import OffloadingConfig

FORMAT_VERSION = 2
"""Version of the rules below: a change of what is digested, or how, raises it."""

_DIGEST_CHARS = 16
_NAME_CHARS = 80


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace: the readable fields and their digest."""

    model_name: str
    fields_json: str
    """The digested fields as canonical JSON (sorted keys, no spaces): what a person compares."""

    @property
    def digest(self) -> str:
        """The whole SHA-256 digest of the fields, in hexadecimal."""
        return hashlib.sha256(self.fields_json.encode()).hexdigest()

    @property
    def directory_name(self) -> str:
        """`<model>_<digest>`: safe as one path component, readable, at most 97 characters."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "_", self.model_name).strip("._") or "model"
        return f"{safe[-_NAME_CHARS:]}_{self.digest[:_DIGEST_CHARS]}"

    def differences(self, other: Namespace) -> tuple[str, ...]:
        """One readable line for every field in which the two differ (`ours` first)."""
        mine, theirs = json.loads(self.fields_json), json.loads(other.fields_json)
        return tuple(
            f"{name}: {mine.get(name)!r} here, {theirs.get(name)!r} there"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        )


def namespace_of(config: OffloadingConfig) -> Namespace:
    """The namespace of an engine's configuration. Source of the list: the specification of names, section 4."""
    parallel = config.parallel
    fields: dict[str, object] = {
        "namespace_version": FORMAT_VERSION,
        "model": config.model.name,
        "revision": config.model.revision,
        "kv_dtype": config.model.dtype,
        "kv_quantisation": config.model.quantisation,
        "hash_algorithm": config.cache.hash_algorithm,
        "hash_seed": config.cache.hash_seed,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "groups": [
            {
                "group_id": group.group_id,
                "tokens_per_block": group.tokens_per_block,
                "layers": list(group.layer_names),
                "page": group.page_signature,
                "worker_bytes": None if parallel.is_parallelism_agnostic else group.worker_kv_bytes_per_block,
            }
            for group in config.groups
        ],
        "layout_family": config.layout.family,
        "layout_version": config.layout.format_version,
        "engine_layout": config.layout.engine_layout,
        "engine_family": config.layout.engine_family,
    }
    if not parallel.is_parallelism_agnostic:
        fields["parallel"] = {
            "tp": parallel.tp_size,
            "pp": parallel.pp_size,
            "pcp": parallel.pcp_size,
            "dcp": parallel.dcp_size,
        }
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Namespace(model_name=config.model.name, fields_json=text)
