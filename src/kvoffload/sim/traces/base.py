"""What a trace is: requests in the order of their arrival, their prompts as keys of blocks. No formats here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey, make_offload_key


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    keys: tuple[OffloadKey, ...]
    """One per block of the prompt, the last one perhaps of less tokens than a block. Equal keys = equal prefix."""


class Trace(ABC):
    """A file of requests. Read again at every iteration: memory holds one request, and one key per unique block.

    Args:
        path: The file.
        block_tokens: Tokens of a block.
    """

    knows_blocks: ClassVar[bool] = True
    """Whether it says which prompts begin alike. If not, nothing about hits can be learned from it."""

    note: str | None = None
    """What its recorder says that a reader of results must know."""

    def __init__(self, path: Path, block_tokens: int) -> None:
        self.path = path
        self.block_tokens = block_tokens

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests. Raises ConfigError with the number of the line that is wrong."""
        last_s = 0.0
        for number, line in self._lines():
            try:
                request = self._parse(line)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise ConfigError(
                    f"{self.path}, line {number}: not a request: {type(error).__name__}: {error}"
                ) from error
            if request.arrival_s < last_s:
                raise ConfigError(f"{self.path}, line {number}: arrives before the request above it")
            last_s = request.arrival_s
            yield request

    def _lines(self) -> Iterator[tuple[int, str]]:
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line

    @abstractmethod
    def _parse(self, line: str) -> TraceRequest:
        """The request in a line. Raises ValueError, KeyError or TypeError."""

    def _request(
        self, arrival_s: float, tokens: tuple[int, int], keys: tuple[OffloadKey, ...]
    ) -> TraceRequest:
        """A request that makes sense; `tokens` are those of the input and of the output."""
        if not 0 <= arrival_s < float("inf"):
            raise ValueError(f"arrives at {arrival_s} s")
        if min(tokens) < 0:
            raise ValueError(f"{tokens} tokens")
        blocks = -(-tokens[0] // self.block_tokens)
        if self.knows_blocks and not tokens[0] // self.block_tokens <= len(keys) <= blocks:
            raise ValueError(f"{tokens[0]} tokens in {len(keys)} blocks of {self.block_tokens}")
        if len(set(keys)) < len(keys):
            raise ValueError("a block occurs twice, so ids do not stand for prefixes")
        return TraceRequest(arrival_s, tokens[0], tokens[1], keys)


class KeyTable:
    """One key object for each block: prompts share them."""

    def __init__(self) -> None:
        self._keys: dict[int | str, OffloadKey] = {}

    def keys_of(self, blocks: list[int | str]) -> tuple[OffloadKey, ...]:
        """The keys of these blocks; texts and whole numbers name blocks."""
        known = self._keys
        try:
            return tuple([known[block] for block in blocks])
        except KeyError:
            for block in blocks:
                if block not in known:
                    known[block] = _key(block)
            return tuple([known[block] for block in blocks])


def _key(block: int | str) -> OffloadKey:
    if isinstance(block, str):
        return make_offload_key(block.encode(), 0)
    if isinstance(block, bool) or not isinstance(block, int):
        raise TypeError(f"{block!r} is not a block id")
    return make_offload_key(block.to_bytes(9, "big", signed=True), 0)
