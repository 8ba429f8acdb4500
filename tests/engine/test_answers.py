"""Several answers to one prompt, searched or sampled: with KV from the host they are what they are without it."""

from __future__ import annotations

import pytest
from expect import SAME_COMPUTATION, SAME_MATHS, assert_equal_outputs, prompt_distance
from kinds import on
from shelf import Subject
from tiny_models import prompts_of

(PROMPT,) = prompts_of(seed=12, number=1, tokens=1100)
CACHED = 1024


@on("tp1", "async")
def test_sampled_answers_are_the_same_whether_the_prompt_was_loaded_or_computed(subject: Subject) -> None:
    # Each answer has its own seed, made of this one: other KV would be other dice for the same numbers.
    options = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 12}
    (wanted,) = subject.cold([PROMPT], **options)
    assert len({tuple(tokens) for tokens in wanted.samples}) == 3
    for loads in (False, True):
        with subject.counting() as counted:
            (found,) = subject.engine.generate([PROMPT], **options)
        assert found.samples == wanted.samples
        assert_equal_outputs([found], [wanted], SAME_MATHS)
        assert (counted["kvoffload_loaded_chunks"] > 0) == loads
        assert (counted["kvoffload_stored_chunks"] > 0) == (not loads)
        subject.evict_device()


@on("gemma3-async")
def test_several_answers_of_a_model_with_several_groups_are_the_same_whether_the_prompt_was_loaded_or_computed(
    subject: Subject,
) -> None:
    # So cold that all of them are the greedy one: with a seed this build of vLLM fails by itself where a prompt takes
    # several steps ("CPU Generator does not use offset").
    (wanted,) = subject.cold([PROMPT])
    for loads in (False, True):
        with subject.counting() as counted:
            (found,) = subject.engine.generate([PROMPT], n=3, temperature=0.01)
        assert found.samples == [wanted.tokens] * 3
        assert (counted["kvoffload_loaded_chunks"] > 0) == loads
        subject.evict_device()


@on("tp1", "gemma3-async")
def test_a_beam_search_finds_the_same_answers_whether_the_prompt_was_loaded_or_computed(
    subject: Subject,
) -> None:
    wanted = subject.plain_engine().beam_search(PROMPT, beams=3, max_tokens=6)
    assert len({tuple(tokens) for tokens, _ in wanted}) == 3
    for loads in (False, True):
        with subject.counting() as counted:
            found = subject.engine.beam_search(PROMPT, beams=3, max_tokens=6)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
        assert [score for _, score in found] == pytest.approx(
            [score for _, score in wanted], abs=6 * SAME_MATHS
        )
        assert (counted["kvoffload_loaded_chunks"] > 0) == loads
        subject.evict_device()


@on("gemma3-async")
def test_prompt_logprobs_of_several_groups_are_computed_and_not_loaded(subject: Subject) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    with subject.counting() as counted:
        (found,) = subject.engine.generate([PROMPT], prompt_logprobs=3)
    assert found.cached_tokens == 0
    assert counted["kvoffload_loaded_chunks"] == counted["kvoffload_lookup_tokens"] == 0
    (wanted,) = subject.cold([PROMPT], prompt_logprobs=3)
    assert_equal_outputs([found], [wanted], max(SAME_COMPUTATION, subject.cold_tolerance))
    assert prompt_distance(found, wanted) <= max(SAME_COMPUTATION, subject.cold_tolerance)
    # It is there for all others.
    subject.evict_device()
    assert subject.engine.generate([PROMPT])[0].cached_tokens == CACHED
