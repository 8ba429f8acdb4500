"""Copies bytes that arrived into their row."""

from __future__ import annotations

import numpy as np


def copy_into(row: memoryview, data: memoryview) -> None:
    """Write `data` to the beginning of a row. Mutates the row only.

    With numpy, which gives up the interpreter lock meanwhile: an assignment to a memoryview keeps it, so all threads of the
    engine would stand still while a chunk of 16 MiB is copied.
    """
    np.copyto(np.frombuffer(row, np.uint8, len(data)), np.frombuffer(data, np.uint8))
