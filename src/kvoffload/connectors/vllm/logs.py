"""Our log lines go where the engine's go. Nothing else lives here."""

from __future__ import annotations

import logging


def adopt_engine_logging() -> None:
    """Give our loggers the engine's handlers and level, unless the user has configured ours already."""
    ours, engine = logging.getLogger("kvoffload"), logging.getLogger("vllm")
    if ours.handlers or not engine.handlers:
        return
    for handler in engine.handlers:
        ours.addHandler(handler)
    ours.setLevel(engine.level)
    ours.propagate = False
