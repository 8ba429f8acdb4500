"""Who writes bytes that several ranks hold alike: one rule, used by the proof and by the copies.

The holders take turns. A turn is the chunk's slot plus the layer's number: every worker knows both, both are equal on all
workers, and so the layers of even a single chunk are spread over the holders and copied at the same time.
"""

from __future__ import annotations


def turn_of(slot: int, layer: int) -> int:
    """The turn in which layer number `layer` of the chunk in `slot` is written."""
    return slot + layer


def elected(turn: int, writers: int) -> int:
    """Which of `writers` holders (0 … writers - 1) writes in this turn."""
    return turn % writers


def first_elected_step(turn: int, writers: int, writer_index: int) -> int:
    """Steps of one turn each until this holder is elected: 0 if it is now, below `writers` always.

    So of chunks in slots s, s + 1, … a holder writes those from this step on, every `writers`-th.
    """
    return (writer_index - elected(turn, writers)) % writers
