"""Models with several KV cache groups (windows, recurrent states): what comes back, and that nobody can tell."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from expect import SAME_COMPUTATION, SAME_MATHS, assert_equal_outputs, distance
from faulty_spec import Fault
from kinds import on
from shelf import FsSubject, Subject
from stored_files import payload_of, turn_signs
from tiny_models import prompts_of, random_tokens

PROMPTS = prompts_of(seed=5, number=5, tokens=1100)
BOUNDARY = 1024
STEP = 512
"""The engine runs so many tokens in a step (`shelf`): states are left at 512 and 1,024."""


@dataclasses.dataclass(frozen=True)
class Groups:
    """What the groups of a model hold of one prompt of 1,100 tokens."""

    full: int
    """Chunks of each group of full attention."""
    windows: int = 0
    window_chunks: int = 0
    """Number of groups with windows, and the chunks that the last window before a boundary spans."""
    states: int = 0

    @property
    def stored(self) -> int:
        """Every chunk of full attention and of windows, and the two states."""
        return self.full * (1 + self.windows) + 2 * self.states

    @property
    def loaded(self) -> int:
        """Of windows the last one, and one state."""
        return self.full + self.windows * self.window_chunks + self.states


GROUPS = {
    "gemma3": Groups(full=8, windows=2, window_chunks=2),
    "lfm2": Groups(full=8, states=2),
    "qwen3-next": Groups(full=4, states=3),
}
MODELS = ("gemma3", "lfm2", "qwen3-next")


def _groups(subject: Subject) -> Groups:
    kind = subject.kind
    for suffix in ("-faults", "-canonical", "-async"):
        kind = kind.removesuffix(suffix)
    return GROUPS[kind]


def _done(verb: str) -> str:
    return f"kvoffload_tier_chunks{{outcome=done,tier=fs,verb={verb}}}"


@on(*MODELS)
def test_evicted_prompts_come_back_and_so_they_do_after_a_restart(subject: FsSubject) -> None:
    groups, count = _groups(subject), len(PROMPTS)
    cold, warm = subject.cold(PROMPTS), subject.warm(PROMPTS)
    with subject.counting() as counted:
        found = subject.engine.generate(PROMPTS)
    assert_equal_outputs(found, cold, subject.cold_tolerance)
    assert [output.cached_tokens for output in found] == [0] * count
    assert counted["kvoffload_stored_chunks"] == groups.stored * count == counted[_done("store")]

    with subject.counting() as counted:
        found = subject.engine.generate(PROMPTS)
    assert [output.cached_tokens for output in found] == [BOUNDARY] * count
    assert counted["vllm:external_prefix_cache_hits"] == BOUNDARY * count
    assert counted["kvoffload_loaded_chunks"] == groups.loaded * count
    assert counted["kvoffload_stored_chunks"] == 0, "what is there was written again"
    assert_equal_outputs(found, warm, subject.warm_tolerance)

    subject.restart()
    with subject.counting() as counted:
        found = subject.engine.generate(PROMPTS)
    assert [output.cached_tokens for output in found] == [BOUNDARY] * count
    assert counted[_done("load")] == counted["kvoffload_loaded_chunks"] == groups.loaded * count
    assert counted["kvoffload_stored_chunks"] == 0
    assert_equal_outputs(found, warm, subject.warm_tolerance)


@on(*MODELS)
def test_negative_control_damage_in_any_single_group_changes_the_output(subject: FsSubject) -> None:
    groups = 1 + _groups(subject).windows + _groups(subject).states
    # A state shows in the tokens right behind it.
    prompts = [prompt[: BOUNDARY + 6] for prompt in PROMPTS[: groups + 1]]
    cold = subject.cold(prompts)
    seen: set[Path] = set()
    for index, prompt in enumerate(prompts):
        subject.engine.generate([prompt])
        own = set(subject.chunk_files()) - seen
        seen |= own
        of_group = [path for path in own if path.stem.endswith(f"_g{index}")]
        # The last prompt is left as it is.
        assert bool(of_group) == (index < groups)
        for path in of_group:
            turn_signs(path)
    subject.restart()
    found = subject.engine.generate(prompts)
    assert [output.cached_tokens for output in found] == [BOUNDARY] * len(prompts)
    gaps = [distance(ours, theirs) for ours, theirs in zip(found, cold, strict=True)]
    # The weakest, a short convolution of two tokens, changed the output by 0.01: a hundred times what is tolerated.
    assert all(gap > 50 * SAME_COMPUTATION for gap in gaps[:-1]), gaps
    assert gaps[-1] <= SAME_COMPUTATION, gaps


@on(*MODELS)
def test_a_prompt_that_shares_a_beginning_loads_it_up_to_a_boundary_of_all_groups(subject: FsSubject) -> None:
    shared = random_tokens(70, 600)
    whole = [*shared, *random_tokens(71, 500)]
    other = [*shared, *random_tokens(72, 200)]
    subject.engine.generate([whole])
    subject.evict_device()
    (found,) = subject.engine.generate([other])
    # 512 is a block's end in all groups, and a step ended there.
    assert found.cached_tokens == STEP
    assert_equal_outputs([found], subject.cold([other]), max(SAME_MATHS, subject.cold_tolerance))


@on(*MODELS)
def test_a_prompt_that_ends_on_a_block_edge_never_goes_on_from_its_own_end(subject: FsSubject) -> None:
    # The last token is computed anew: from a state or a window before it, not from the one behind it.
    prompt = random_tokens(73, 1024)
    longer = [*prompt, *random_tokens(74, 20)]
    cold = subject.cold([prompt, longer])
    subject.engine.generate([longer])
    subject.evict_device()
    found = subject.engine.generate([prompt])
    assert 0 < found[0].cached_tokens < 1024
    subject.evict_device()
    found += subject.engine.generate([longer])
    assert found[1].cached_tokens == 1024
    assert_equal_outputs(found, cold, max(SAME_MATHS, subject.cold_tolerance))


@on("gemma3")
def test_concurrent_prompts_are_stored_and_loaded(subject: FsSubject) -> None:
    # Of windows only: where steps end changes how this engine rounds states, by 0.1 and more.
    cold = subject.cold(PROMPTS)
    for expected in ("kvoffload_stored_chunks", "kvoffload_loaded_chunks"):
        with subject.counting() as counted:
            found = subject.engine.generate(PROMPTS, one_by_one=False)
        assert_equal_outputs(found, cold, max(SAME_MATHS, subject.cold_tolerance))
        assert counted[expected] > 0


def _assert_loaded(subject: FsSubject, prompts: list[list[int]], groups: Groups) -> dict[str, float]:
    """The prompts come back, and nobody can tell; returns what was counted."""
    with subject.counting() as counted:
        found = subject.engine.generate(prompts)
    assert counted["kvoffload_loaded_chunks"] == groups.loaded * len(prompts)
    assert counted["kvoffload_stored_chunks"] == 0
    assert [output.cached_tokens for output in found] == [BOUNDARY] * len(prompts)
    gaps = [distance(ours, theirs) for ours, theirs in zip(found, subject.cold(prompts), strict=True)]
    assert max(gaps) <= max(SAME_MATHS, subject.cold_tolerance), gaps
    return counted


def _of_the_first_layer(subject: FsSubject) -> dict[str, bytes]:
    """What is stored of the layer that no all-reduce has come before; two layers of equal pages make a group, or one does."""
    layers = 1 if subject.kind.startswith("qwen3-next") else 2
    found = {
        path.name: payload_of(path).tobytes() for path in subject.chunk_files() if path.stem.endswith("_g0")
    }
    return {name: content[: len(content) // layers] for name, content in found.items()}


@on("gemma3", "lfm2-canonical", "qwen3-next-canonical")
def test_what_one_tensor_parallel_size_has_stored_it_loads_after_eviction_and_another_one_after_a_restart(
    subject: FsSubject,
) -> None:
    groups, prompts = _groups(subject), PROMPTS[:2]
    stored = {}
    # There and back, so that the engine ends as the kind that it is.
    for stores, loads in ((1, 2), (2, 1)):
        assert subject.tp == stores
        subject.engine.generate(prompts)
        stored[stores] = _of_the_first_layer(subject)
        subject.evict_device()
        _assert_loaded(subject, prompts, groups)
        subject.restart(tp=loads)
        counted = _assert_loaded(subject, prompts, groups)
        assert counted[_done("load")] == groups.loaded * len(prompts)
        subject.clear()
    assert stored[1], "nothing to compare"
    assert stored[1] == stored[2], "the same bytes from one rank as from two"


@on("gemma3-faults", "gemma3-async")
@pytest.mark.parametrize("name", ["all", "first", "last"])
def test_a_chunk_that_fails_in_one_group_voids_the_load_of_all(subject: Subject, name: str) -> None:
    prompt = PROMPTS[:1]
    groups = _groups(subject)
    cold = subject.cold(prompt)
    subject.engine.generate(prompt)
    subject.evict_device()
    subject.faults(load=Fault(fail=name))
    with subject.counting() as counted:
        found = subject.engine.generate(prompt)
    assert_equal_outputs(found, cold, SAME_MATHS)
    assert found[0].finish_reason == "length"
    lost = counted["kvoffload_load_failed_chunks"]
    assert lost == groups.loaded if name == "all" else 0 < lost < groups.loaded
    subject.faults()
    subject.evict_device()
    with subject.counting() as counted:
        found = subject.engine.generate(prompt)
    assert found[0].cached_tokens == BOUNDARY
    assert counted["kvoffload_loaded_chunks"] == groups.loaded
    assert_equal_outputs(found, cold, SAME_MATHS)
