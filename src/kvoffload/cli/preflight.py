"""Traps of the environment that would end an engine's start in a page of traceback: found first, told in one line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from kvoffload.errors import KvError

_TIMEOUT_S = 120
_MEND = f"{sys.executable} -m pip uninstall -y torchvision torchaudio torchcodec"


class BrokenEnvironmentError(KvError):
    """Packages of this environment do not fit each other."""


def check_torchvision() -> None:
    """See that torchvision, if there is one, fits torch: if not, the engine's tokenizer library cannot be imported.

    Text models do without torchvision, so the engine starts when it is absent. The import runs in a process of its
    own: this one shall not load torch.

    Raises:
        BrokenEnvironmentError: says how to mend it.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        probe = subprocess.run(
            [sys.executable, "-c", "import torchvision"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        raise BrokenEnvironmentError(
            f"torchvision is installed but does not fit torch ({reason}), so the engine cannot start; text models do "
            f"not need it: {_MEND}"
        )
