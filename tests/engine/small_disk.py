"""A disk that is soon full, for tests of what a full disk costs."""

from __future__ import annotations

import subprocess
from pathlib import Path


class SmallDisk:
    """A file system of its own that is soon full: a small tmpfs. Where mounting is not permitted there is none."""

    def __init__(self, path: Path, size: str) -> None:
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
        done = subprocess.run(command, check=False, capture_output=True)
        self.path = path
        self.exists = done.returncode == 0

    def close(self) -> None:
        """Give it back."""
        if self.exists:
            subprocess.run(["umount", "-l", str(self.path)], check=True)
