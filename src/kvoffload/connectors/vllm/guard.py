"""The first law at the edge: a bug in here may cost the cache, but not the engine.

An unexpected error turns the connector's side off for the rest of its life, with one loud line: from then on it
answers as if there was no cache.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Guarded(Protocol):
    """Something that can be turned off."""

    broken: bool


S = TypeVar("S", bound=Guarded)


def guarded(
    otherwise: Callable[[], R],
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Wrap a method: after its first unexpected error, and from then on, it returns `otherwise()`."""

    def wrap(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if self.broken:
                return otherwise()
            try:
                return method(self, *args, **kwargs)
            except Exception:
                self.broken = True
                logger.exception(
                    "kvoffload: internal error in %s; the cache is OFF until the engine is restarted. The engine goes "
                    "on without it. Please report this.",
                    method.__qualname__,
                )
                return otherwise()

        return call

    return wrap
