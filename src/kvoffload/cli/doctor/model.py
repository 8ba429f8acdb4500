"""Whether chunks of a model's layers can be read under another parallel layout, and if not, why: from its config.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from kvoffload.cli.doctor.check import Check, fail, ok, warn
from kvoffload.layout.canonical import page_signature
from kvoffload.layout.certify import Certified, certify
from kvoffload.layout.families import EngineHabits, pages_of_config
from kvoffload.layout.geometry import ParallelSizes

_HABITS = EngineHabits(block_tokens=16, item_bytes=2)
"""An engine of today; neither number decides whether a layer is certified."""


def check_model(path: Path, tp: int) -> Iterator[Check]:
    """One line for each stretch of layers with the same answer.

    Args:
        path: A model's config.json, or its directory.
        tp: Tensor-parallel size of the engine.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        fields: Any = json.loads(file.read_text(encoding="utf-8"))
        pages = pages_of_config(fields, _HABITS)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield fail(
            "model",
            f"{file} is not a model's config.json: {type(error).__name__}: {error}",
            "give the file, or the directory that holds it",
        )
        return
    sizes = ParallelSizes(tp=tp)
    first = 0
    for verdict, same in groupby(certify(page, sizes) for page in pages):
        count = len(list(same))
        name = f"layer {first}" if count == 1 else f"layers {first}-{first + count - 1}"
        first += count
        if isinstance(verdict, Certified):
            yield ok(name, f"certified: {page_signature(verdict.page, sizes, 1)}")
        else:
            yield warn(
                name,
                f"not certified under TP {tp}: {verdict.reason}",
                "nothing, if the parallel layout stays as it is: these layers are kept rank by rank",
            )
