"""How outputs are compared, and how close is close enough.

Measured on this build, tiny Llama in float32: two runs with the same KV bytes and the same batch shapes are equal to
the last bit; a cold run and one that computes only the end of a prompt differ by up to 2e-5 in log-probability (sums
in another order); a run whose loaded KV was damaged differs by more than 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine_process import Output

SAME_COMPUTATION = 1e-4
"""The same bytes and the same shapes. Kernels share their work out anew in every run: up to 6e-6 was seen."""
SAME_MATHS = 1e-3
"""The same formula, summed in another order (other batch or chunk shapes), float32."""
BFLOAT16_TP = 0.1
"""What another tensor-parallel size changes in bfloat16: 0.03 was seen, without the connector as with it."""
DAMAGED = 0.05
"""What damaged KV must at least change, or the tests could not see wrong KV."""


def distance(found: Output, wanted: Output) -> float:
    """The largest difference of a log-probability, at any position; infinite if the tokens differ.

    A token that only one side lists among its top ones counts with what it exceeds the other side's lowest by.
    """
    if found.tokens != wanted.tokens:
        return math.inf
    assert found.logprobs, found.id
    assert wanted.logprobs, wanted.id
    return max(
        (_step_distance(a, b) for a, b in zip(found.logprobs, wanted.logprobs, strict=True)), default=0.0
    )


def prompt_distance(found: Output, wanted: Output) -> float:
    """The same for the log-probabilities of the prompt."""
    assert found.prompt_logprobs, found.id
    assert wanted.prompt_logprobs, wanted.id
    return max(
        _step_distance(a, b) for a, b in zip(found.prompt_logprobs, wanted.prompt_logprobs, strict=True)
    )


def _step_distance(a: dict[int, float], b: dict[int, float]) -> float:
    if not a and not b:
        return 0.0
    low_a, low_b = min(a.values()), min(b.values())
    return max(
        *(abs(value - b[token]) if token in b else max(0.0, value - low_b) for token, value in a.items()),
        *(0.0 if token in a else max(0.0, value - low_a) for token, value in b.items()),
    )


def assert_equal_outputs(found: Sequence[Output], wanted: Sequence[Output], tolerance: float) -> None:
    """Equal tokens, and log-probabilities within the tolerance."""
    assert len(found) == len(wanted)
    for index, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        gap = distance(ours, theirs)
        assert gap <= tolerance, (
            f"output {index}: log-probabilities differ by {gap}, allowed {tolerance}; "
            f"tokens {ours.tokens} and {theirs.tokens}"
        )
