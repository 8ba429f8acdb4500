"""The identity of a model's weights: two sets of weights under one name must never share KV."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

_SAMPLE_BYTES = 4096
_MAX_SAMPLES = 1024
"""Per file: every tensor that matters in size is touched, at the cost of 4 MiB of reading."""
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_CONFIG_NAMES = ("config.json", "adapter_config.json")
_UNCERTAIN = "revision:"


def model_revision(model: str, revision: str | None, download_dir: str | None = None) -> str:
    """The revision of a model, as exactly as it can be known without reading all of its weights.

    Args:
        model: Path of a directory or file, or the name of a model on a hub.
        revision: The revision that the user asked for, if any.
        download_dir: Where the engine keeps what it downloads, if not in the usual place.

    Returns:
        For a local model a digest of its contents: sizes and samples (up to 1,024 pages, evenly spread) of all weight
        files and the whole configuration, so that a copy on another host has the same identity and retrained
        weights under the same path another one. For a hub's model the commit that lies in the local cache, else
        the revision as given (see `is_certain`).
    """
    path = Path(model)
    if path.exists():
        return f"content:{content_digest(path)}"
    commit = _cached_commit(model, revision, download_dir)
    return f"commit:{commit}" if commit else f"{_UNCERTAIN}{revision or 'main'}"


def is_certain(revision: str) -> bool:
    """Whether a `model_revision` can name one set of weights only, also tomorrow and on another host."""
    return not revision.startswith(_UNCERTAIN)


class AdapterIdentities:
    """What tells the KV of an adapter from that of another one which later lies under the same name and path."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], bytes]] = {}

    def salt_of(self, path: str) -> bytes | None:
        """Goes into the keys of the adapter's requests: 16 bytes; None if its files cannot be seen from here."""
        root = Path(path)
        try:
            signature = tuple(
                (item.name, found.st_ino, found.st_mtime_ns, found.st_size)
                for item in _files_of(root)
                if (found := item.stat())
            )
            if not signature:
                return None
            before, salt = self._known.get(path, ((), b""))
            if before != signature:
                salt = bytes.fromhex(content_digest(root))
                self._known[path] = (signature, salt)
        except OSError:
            return None
        return salt


def content_digest(path: Path) -> str:
    """Digest of the weights and configuration in a directory (or of one file): 32 hexadecimal digits.

    Raises:
        OSError: something cannot be read.
    """
    digest = hashlib.sha256()
    for item in _files_of(path):
        digest.update(f"{item.name}:{item.stat().st_size}:".encode())
        _add_samples(digest, item)
    return digest.hexdigest()[:32]


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(item for item in path.iterdir() if item.is_file())
    return [item for item in files if item.suffix in _WEIGHT_SUFFIXES or item.name in _CONFIG_NAMES]


def _add_samples(digest: Any, path: Path) -> None:
    size = path.stat().st_size
    step = max(_SAMPLE_BYTES, size // _MAX_SAMPLES)
    with path.open("rb", buffering=0) as file:
        for start in range(0, size, step):
            file.seek(start)
            digest.update(file.read(_SAMPLE_BYTES))


def _cached_commit(model: str, revision: str | None, download_dir: str | None) -> str | None:
    try:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - comes with the engine
    except ImportError:
        return None
    found = try_to_load_from_cache(model, "config.json", cache_dir=download_dir, revision=revision or "main")
    if not isinstance(found, str):
        return None
    parts = Path(found).parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None
