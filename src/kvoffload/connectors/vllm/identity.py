"""The identity of a model's weights: two sets of weights under one name must never share KV."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvoffload.clock import Clock

_SAMPLE_BYTES = 4096
_MAX_SAMPLES = 1024
"""Per file: every tensor that matters in size is touched, at the cost of 4 MiB of reading."""
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_CONFIG_NAMES = ("config.json", "adapter_config.json")
_UNCERTAIN = "revision:"
_ADAPTER_CHECK_S = 5.0
_MAX_ADAPTERS = 4096
"""That are remembered: some kilobytes each."""


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
    if path.exists() and any(item.suffix in _WEIGHT_SUFFIXES for item in _files_of(path)):
        return f"content:{content_digest(path)}"
    if path.exists():
        # Loaders that stream weights from elsewhere leave a directory with the configuration alone.
        return f"{_UNCERTAIN}{content_digest(path)}"
    commit = _cached_commit(model, revision, download_dir)
    return f"commit:{commit}" if commit else f"{_UNCERTAIN}{revision or 'main'}"


def is_certain(revision: str) -> bool:
    """Whether a `model_revision` can name one set of weights only, also tomorrow and on another host."""
    return not revision.startswith(_UNCERTAIN)


@dataclass(slots=True)
class _Adapter:
    signature: tuple[object, ...] | None = None
    salt: bytes | None = None
    """None: not known yet, or its files cannot be seen, or were changed after the engine had loaded them."""
    checked_s: float = float("-inf")
    is_lost: bool = False


class AdapterIdentities:
    """What tells the KV of an adapter from that of another one which later lies under the same name and path.

    The files are read by a thread: an adapter on a file system that hangs must not stop the engine's scheduler.

    Memory is bounded, and forgetting is safe: an adapter that was forgotten never gets an identity again under its id. The
    engine may still hold what its files were, and only the entry knew whether they are still the same. Engines number
    adapters upwards, so whatever is not known and numbered below one that was forgotten may be forgotten itself.

    Args:
        clock: For how often the files are looked at.
        max_adapters: So many are remembered; of more those that were not asked for the longest are forgotten.
    """

    def __init__(self, clock: Clock, max_adapters: int = _MAX_ADAPTERS) -> None:
        self._clock = clock
        self._max_adapters = max_adapters
        self._known: OrderedDict[tuple[int, str], _Adapter] = OrderedDict()
        # Ids begin with 1.
        self._highest_forgotten = 0
        self._thread = ThreadPoolExecutor(1, "kvoffload-adapters")

    def salt_of(self, adapter_id: int, path: str) -> bytes | None:
        """Goes into the keys of the adapter's requests: 16 bytes; never waits.

        The engine keeps an adapter under its id once it was loaded. If its files change under that id, nobody can tell
        which of them it has: None from then on, as long as the id lives. Likewise of an adapter that was forgotten.
        """
        adapter = self._entry(adapter_id, path)
        if adapter is None:
            return None
        salt, now_s = adapter.salt, self._clock.now_s()
        if now_s - adapter.checked_s >= _ADAPTER_CHECK_S:
            adapter.checked_s = now_s
            self._thread.submit(_look_at, adapter, Path(path))
        return salt

    def close(self) -> None:
        """End the thread, unless it hangs."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _entry(self, adapter_id: int, path: str) -> _Adapter | None:
        known, name = self._known, (adapter_id, path)
        if name in known:
            known.move_to_end(name)
            return known[name]
        if adapter_id <= self._highest_forgotten:
            return None
        known[name] = _Adapter()
        if len(known) > self._max_adapters:
            (forgotten, _), _ = known.popitem(last=False)
            self._highest_forgotten = max(self._highest_forgotten, forgotten)
        return known[name]


def _look_at(adapter: _Adapter, root: Path) -> None:
    if adapter.is_lost:
        return
    try:
        signature = tuple(
            (item.name, found.st_ino, found.st_mtime_ns, found.st_size)
            for item in _files_of(root)
            if (found := item.stat())
        )
        has_weights = any(item.suffix in _WEIGHT_SUFFIXES for item in _files_of(root))
        if adapter.signature is None and has_weights:
            adapter.signature = signature
            adapter.salt = bytes.fromhex(content_digest(root))
    except OSError:
        signature = ()
    if adapter.signature is not None and adapter.signature != signature:
        adapter.salt, adapter.is_lost = None, True


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
