"""Admission: what of a request is worth a slot at all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvoffload.keys.offload_key import OffloadKey


class Admission:
    """Asked twice: for how much of a request, and then for each chunk that would take a slot. This one admits all.

    Only ever the beginning of a request is admitted or not, never its middle: a chunk is worth nothing without those
    before it.
    """

    def max_tokens(self, prompt_tokens: int) -> int | None:
        """How many tokens from the start of a request may be stored, None: any number. Does not mutate.

        Args:
            prompt_tokens: Length of its prompt.
        """
        del prompt_tokens
        return None

    def admit(self, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
        """Those of these new keys that may be stored, in order."""
        return list(keys)

    def clear(self) -> None:
        """Forget what was learned."""


class PromptOnly(Admission):
    """Nothing of an answer: the next turn often drops or rewrites it."""

    def max_tokens(self, prompt_tokens: int) -> int:
        """See Admission."""
        return prompt_tokens


class SizeLimit(Admission):
    """By what a request costs: prompts that are computed faster than moved are left out, long ones cut.

    The chunks of a group are equally large, so the size that can differ is that of the prompt. One long document then
    takes a bounded share of the tier, and its beginning stays usable; by tokens, because all groups of a model must
    agree where a prefix ends.

    Args:
        min_prompt_tokens: Nothing is stored of shorter prompts.
        max_tokens: Nothing is stored beyond so many tokens of a request; None: no bound.
    """

    def __init__(self, min_prompt_tokens: int = 0, max_tokens: int | None = None) -> None:
        assert min_prompt_tokens >= 0, min_prompt_tokens
        assert max_tokens is None or max_tokens > 0, max_tokens
        self._min_prompt_tokens = min_prompt_tokens
        self._max_tokens = max_tokens

    def max_tokens(self, prompt_tokens: int) -> int | None:
        """See Admission."""
        return 0 if prompt_tokens < self._min_prompt_tokens else self._max_tokens


class AllOf(Admission):
    """What all of these admit; a chunk that one leaves out is not shown to those behind it."""

    def __init__(self, parts: Sequence[Admission]) -> None:
        self._parts = tuple(parts)

    def max_tokens(self, prompt_tokens: int) -> int | None:
        """See Admission."""
        limits = [part.max_tokens(prompt_tokens) for part in self._parts]
        return min((limit for limit in limits if limit is not None), default=None)

    def admit(self, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
        """See Admission."""
        admitted = list(keys)
        for part in self._parts:
            admitted = part.admit(admitted)
        return admitted

    def clear(self) -> None:
        """See Admission."""
        for part in self._parts:
            part.clear()


class TouchFilter(Admission):
    """Admits a key when it was offered `threshold` times; remembers at most `max_keys` (the least recent go).

    With a threshold below 2 everything is admitted and nothing is remembered.
    """

    def __init__(self, threshold: int, max_keys: int) -> None:
        assert max_keys > 0, max_keys
        self._threshold = threshold
        self._max_keys = max_keys
        self._counts: OrderedDict[OffloadKey, int] = OrderedDict()

    def admit(self, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
        """Count one offer of each key and return those that are admitted, in order."""
        if self._threshold < 2:
            return list(keys)
        admitted = []
        for key in keys:
            seen = self._counts.pop(key, 0) + 1
            if seen >= self._threshold:
                admitted.append(key)
            else:
                self._counts[key] = seen
        while len(self._counts) > self._max_keys:
            self._counts.popitem(last=False)
        return admitted

    def clear(self) -> None:
        """Forget all offers."""
        self._counts.clear()
