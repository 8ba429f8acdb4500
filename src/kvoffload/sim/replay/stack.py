"""LRU's hits at every capacity from one pass over a trace: stack distances.

R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger: Evaluation techniques for storage hierarchies (IBM Systems Journal, 1970).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.curve import SampledCurve, digest_sampler
from kvoffload.sim.traces.base import TraceRequest

Ints = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
"""Distance of a first access: no capacity makes it a hit."""


def stack_distances(stream: Sequence[OffloadKey]) -> Ints:
    """How many other keys were accessed since the last access of the same key; NEVER for the first one.

    An LRU cache of C keys has a hit exactly where the distance is below C.

    Between the last access `p` and this one `i` lie i - p - 1 accesses; those whose own last access is after `p` repeat
    a key that is counted already. So the distance is i - p - 1 minus the earlier accesses with a later predecessor, and
    these are the inversions that a merge sort counts.
    """
    last: dict[OffloadKey, int] = {}
    previous = np.empty(len(stream), np.int64)
    for index, key in enumerate(stream):
        previous[index] = last.get(key, -1)
        last[key] = index
    return _distances(previous, np.arange(len(stream)), _earlier_and_greater(previous, previous))


def _distances(previous: Ints, now: Ints, repeated: Ints) -> Ints:
    distances: Ints = now - previous - 1 - repeated
    distances[previous < 0] = NEVER
    return distances


def _earlier_and_greater(left_values: Ints, values: Ints) -> Ints:
    """For each of `values`, how many of `left_values` at earlier places are greater.

    All levels of a merge sort, each in one numpy call. Values from -1 on.
    """
    count = len(values)
    greater = np.zeros(count, np.int64)
    if not count:
        return greater
    places = np.arange(count)
    span = int(max(left_values.max(), values.max())) + 2
    width = 1
    while width < count:
        # Left halves, sorted, one behind the other: the number of the pair stands above the value.
        is_right = (places // width % 2).astype(bool)
        pairs = places // (2 * width) * span + 1
        left = np.sort((pairs + left_values)[~is_right])
        below = np.searchsorted(left, (pairs + values)[is_right], side="right")
        ends = np.searchsorted(left, pairs[is_right] - 1 + span, side="left")
        greater[is_right] += ends - below
        width *= 2
    return greater


def prefix_distances(prompts: Iterable[Sequence[OffloadKey]]) -> Ints:
    """As `stack_distances`, as an engine sees them; prompt by prompt, each from its head to its tail.

    A prompt is looked up as a whole before anything changes, and then used from its tail to its head (the head is the
    most recent). So the distance of a block reaches from its last use to the beginning of its prompt.
    """
    last: dict[OffloadKey, int] = {}
    asked: list[int] = []
    used: list[int] = []
    starts: list[int] = []
    is_question: list[bool] = []
    for keys in prompts:
        start = len(starts) // 2
        previous = [last.get(key, -1) for key in keys]
        # First all questions, then all uses: only uses are counted.
        asked += previous + [-1] * len(keys)
        used += [-1] * len(keys) + previous[::-1]
        starts += [start] * (2 * len(keys))
        is_question += [True] * len(keys) + [False] * len(keys)
        last.update(zip(reversed(keys), range(start, start + len(keys)), strict=True))
    questions = np.array(asked, np.int64)
    distances = _distances(
        questions, np.array(starts, np.int64), _earlier_and_greater(np.array(used, np.int64), questions)
    )
    found: Ints = distances[np.array(is_question, bool)]
    return found


@dataclass(frozen=True, slots=True)
class Curve:
    """What LRU hits, by capacity in blocks. Arrays of one length."""

    capacities: tuple[int, ...]
    miss_ratio: tuple[float, ...] | None
    """Of block accesses; a hit behind a miss counts. None of a sampled curve."""
    prefix_hit_ratio: tuple[float, ...]
    """Of tokens; a block counts only if all before it hit."""
    error: tuple[float, ...] | None = None
    """Of a sampled curve: two standard errors of `prefix_hit_ratio`."""


def lru_curve(requests: Iterable[TraceRequest], block_tokens: int, capacities: Sequence[int]) -> Curve:
    """Both ratios at these capacities. Needs memory for every access of the trace."""
    prompts: list[tuple[OffloadKey, ...]] = []
    tokens: list[int] = []
    total_tokens = 0
    for request in requests:
        prompts.append(request.keys)
        total_tokens += request.input_tokens
        whole, rest = divmod(request.input_tokens, block_tokens)
        tokens += [block_tokens] * whole + [rest] * (len(request.keys) - whole)
    distances = stack_distances([key for keys in prompts for key in keys])
    reach = _running_maxima(prefix_distances(prompts), [len(keys) for keys in prompts])
    weights = np.array(tokens, np.int64)
    return Curve(
        tuple(capacities),
        tuple(float(np.mean(distances >= capacity)) for capacity in capacities),
        tuple(float(weights[reach < capacity].sum() / max(1, total_tokens)) for capacity in capacities),
    )


def sampled_lru_curve(
    requests: Iterable[TraceRequest], block_tokens: int, capacities: Sequence[int], rate: float
) -> Curve:
    """As `lru_curve`, from a sample of the blocks: memory for `rate` of the unique blocks, and no more.

    Args:
        requests: In the order of their arrival.
        block_tokens: Tokens of a block.
        capacities: Ascending.
        rate: The share of the blocks that is sampled, above 0 and up to 1.
    """
    curve = SampledCurve(capacities, digest_sampler(rate), rate)
    for request in requests:
        rest = request.input_tokens - block_tokens * (len(request.keys) - 1)
        curve.use(request.keys, min(1.0, rest / block_tokens))
    found = curve.estimates()
    return Curve(
        tuple(capacities),
        None,
        tuple(estimate.hit_ratio for estimate in found),
        tuple(estimate.error for estimate in found),
    )


def _running_maxima(distances: Ints, lengths: Sequence[int]) -> Ints:
    """For each block the greatest distance of it and those before it in its prompt: below it the prefix breaks."""
    reach = distances.copy()
    start = 0
    for length in lengths:
        np.maximum.accumulate(distances[start : start + length], out=reach[start : start + length])
        start += length
    return reach
