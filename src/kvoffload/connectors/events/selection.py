"""Which of the stored blocks belong into a trace: one group's, on the device. No state but what was chosen."""

from __future__ import annotations

from collections import Counter

from kvoffload.connectors.events.batches import StoredBlocks

_DEVICE = "GPU"
"""What vLLM calls every device's memory."""
_FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds whose every block is kept until there is no room. Windows and states drop blocks for another reason."""


class Selection:
    """The first group of full attention that stores anything speaks for the model.

    All groups of a model see the same prompts, so their blocks would count twice; and one trace has one size of block.
    """

    def __init__(self) -> None:
        self.group: int | None = None
        """The group that was chosen; None: none yet."""
        self.block_tokens: int | None = None
        """Tokens of its blocks."""
        self.left_out: Counter[str] = Counter()
        """Blocks that do not belong into the trace, by reason."""

    def takes(self, stored: StoredBlocks) -> bool:
        """Whether these blocks belong into the trace. Counts those that do not."""
        reason = self._reason_against(stored)
        if reason is not None:
            self.left_out[reason] += len(stored.hashes)
        return reason is None

    def _reason_against(self, stored: StoredBlocks) -> str | None:
        if stored.medium is not None and stored.medium.upper() != _DEVICE:
            return f"not on the device ({stored.medium[:20]!r})"
        if stored.kind is not None and stored.kind not in _FULL_ATTENTION:
            return f"group of {stored.kind[:30]!r}"
        if self.group is None:
            self.group, self.block_tokens = stored.group, stored.block_tokens
        if stored.group != self.group:
            return "another group of full attention"
        if stored.block_tokens != self.block_tokens:
            return f"blocks of another size than {self.block_tokens} tokens"
        return None
