"""Where prompt tokens came from, read from the engine's own metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_LINE = re.compile(r"^(?P<name>[^\s{#]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class TokenSources:
    """Prompt tokens by where their KV came from."""

    computed: int
    device: int
    """From the engine's own prefix cache in device memory."""
    kvoffload: int
    """Loaded by the connector."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.computed + self.device + self.kvoffload

    def since(self, before: TokenSources) -> TokenSources:
        """What was added after `before`."""
        return TokenSources(
            self.computed - before.computed, self.device - before.device, self.kvoffload - before.kvoffload
        )


def sum_metric(text: str, name: str, **labels: str) -> float:
    """Sum of all series of a metric that carry these labels, from the text format of Prometheus; 0 if there are none."""
    total = 0.0
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match["name"] != name:
            continue
        found = dict(_LABEL.findall(match["labels"] or ""))
        if all(found.get(key) == value for key, value in labels.items()):
            total += float(match["value"])
    return total


def read_sources(text: str) -> TokenSources:
    """The counters as they stand in the engine's metrics."""

    def tokens(source: str) -> int:
        return int(sum_metric(text, _BY_SOURCE, source=source))

    return TokenSources(
        computed=tokens("local_compute"),
        device=tokens("local_cache_hit"),
        kvoffload=tokens("external_kv_transfer"),
    )


def sources_of_request(
    read: Callable[[], TokenSources], before: TokenSources, prompt_tokens: int, wait: Callable[[], bool]
) -> TokenSources:
    """What one request added to the counters.

    The engine counts in another task than the one that answers, so its counters may come a moment later.

    Args:
        read: Reads the counters.
        before: The counters before the request.
        prompt_tokens: Of the request.
        wait: Waits a little; false when that was long enough.
    """
    added = read().since(before)
    while added.total < prompt_tokens and wait():
        added = read().since(before)
    return added
