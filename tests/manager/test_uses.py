"""A request is one use of each of its chunks, however often the manager names them."""

from __future__ import annotations

from scheduler_side import TOKENS_PER_BLOCK, SchedulerSide, run

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.lfu import LFUPolicy


class Counting(LFUPolicy):
    """LFU that can be asked."""

    def uses(self) -> list[int]:
        return sorted(uses for uses in self._count.values())


def test_stored_once_and_loaded_twice_are_three_uses() -> None:
    side = SchedulerSide(num_slots=8)
    policy = Counting(8)
    side.tier._policy = policy
    text, blocks = "abc", [1, 2, 3]
    tokens = len(text) * TOKENS_PER_BLOCK
    side.store("first", text, blocks)
    assert policy.uses() == [1, 1, 1]
    for number in range(2):
        name = f"again-{number}"
        side.add(name, text)
        assert side.match(name) == tokens
        side.allocate(name, blocks, load=tokens)
        side.report(*side.step().loads)
        side.step(run(name, blocks, 1, computed=tokens))
        side.finish(name, tokens)
    assert policy.uses() == [3, 3, 3]


def test_what_the_device_had_is_a_use_too() -> None:
    side = SchedulerSide(num_slots=8)
    policy = Counting(8)
    side.tier._policy = policy
    side.store("first", "abc", [1, 2, 3])
    side.store("longer", "abcd", [1, 2, 3, 4])
    keys: list[OffloadKey] = list(policy._count)
    assert len(keys) == 4
    assert policy.uses() == [1, 2, 2, 2]
