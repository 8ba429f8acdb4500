"""Removes a torchvision that does not fit torch from this interpreter's environment. Standard library only.

The CPU build of vLLM brings a torchvision that was built for another torch: importing it fails ("operator
torchvision::nms does not exist"), and then `transformers` cannot be imported either. Text models do not need it. Where
torchvision works, or is absent, or torch itself does not work, nothing is changed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
"""Packages that are built for one torch each. The first one decides."""


def packages_to_remove(is_installed: Callable[[str], bool], works: Callable[[str], bool]) -> list[str]:
    """Which packages have to go.

    Args:
        is_installed: Whether a module is there.
        works: Whether it can be imported, together with torch.
    """
    decider = COMPANIONS[0]
    if not is_installed("torch") or not is_installed(decider):
        return []
    if works(decider) or not works("torch"):
        return []
    return [decider, *(name for name in COMPANIONS[1:] if is_installed(name) and not works(name))]


def is_installed(module: str) -> bool:
    """Whether the module is there; does not import it."""
    return importlib.util.find_spec(module) is not None


def works(module: str) -> bool:
    """Whether the module can be imported after torch; tried in a process of its own."""
    program = f"import torch, {module}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def main() -> int:
    """Mend this environment; returns the exit code of pip, 0 if there was nothing to do."""
    removed = packages_to_remove(is_installed, works)
    if not removed:
        print("torchvision: nothing to mend")
        return 0
    print(
        f"torchvision does not fit torch here; removing {', '.join(removed)} (text models do not need it)",
        flush=True,
    )
    return subprocess.run(
        [sys.executable, "-m", "pip", "uninstall", "--yes", *removed], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
