"""The identity of a model's weights: two sets of weights under one name must never share KV."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SAMPLE_BYTES = 1 << 20
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_CONFIG_NAME = "config.json"


def model_revision(model: str, revision: str | None) -> str:
    """The revision of a model, as exactly as it can be known without reading all of its weights.

    Args:
        model: Path of a directory or file, or the name of a model on a hub.
        revision: The revision that the user asked for, if any.

    Returns:
        For a local model a digest of its contents: sizes and samples (first, middle and last MiB) of all weight
        files and the whole configuration, so that a copy on another host has the same identity and retrained
        weights under the same path another one. For a hub's model the commit that lies in the local cache, else
        the revision as given.
    """
    path = Path(model)
    if path.exists():
        return f"content:{_content_digest(path)}"
    commit = _cached_commit(model, revision)
    return f"commit:{commit}" if commit else f"revision:{revision or 'main'}"


def _content_digest(path: Path) -> str:
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(item for item in path.iterdir() if item.is_file())
    for item in files:
        if item.suffix in _WEIGHT_SUFFIXES or item.name == _CONFIG_NAME:
            digest.update(f"{item.name}:{item.stat().st_size}:".encode())
            digest.update(_sample(item))
    return digest.hexdigest()[:32]


def _sample(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= 3 * _SAMPLE_BYTES:
            return file.read()
        parts = []
        for start in (0, (size - _SAMPLE_BYTES) // 2, size - _SAMPLE_BYTES):
            file.seek(start)
            parts.append(file.read(_SAMPLE_BYTES))
        return b"".join(parts)


def _cached_commit(model: str, revision: str | None) -> str | None:
    try:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - comes with the engine
    except ImportError:
        return None
    found = try_to_load_from_cache(model, _CONFIG_NAME, revision=revision or "main")
    if not isinstance(found, str):
        return None
    parts = Path(found).parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None
