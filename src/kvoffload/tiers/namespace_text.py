"""What `namespace.json` says in every store: what a namespace's fingerprint is made of, for people and for a check.

The name of its directory or prefix carries 16 characters of the digest. The file carries all of it and every field, so that
two configurations that should have met can be compared, and what was renamed by hand is noticed.
"""

from __future__ import annotations

import json

from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import Namespace
from kvoffload.layout.chunk_format import FORMAT_VERSION, ChunkIdentity

_KIND = "kvoffload namespace"
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
