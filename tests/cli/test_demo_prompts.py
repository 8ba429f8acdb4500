"""The demo's prompts: long, real, the same every time, and different from the first block on."""

from __future__ import annotations

import itertools

import pytest

from kvoffload.cli.demo.prompts import SUBJECTS, WARM_UP, PromptError, Subject, build_prompt, load_topics


def count(messages):
    """A coarse tokenizer: four characters a token, and a template."""
    return 30 + sum(len(message["content"]) for message in messages) // 4


@pytest.fixture(scope="module")
def prompts():
    topics = load_topics()
    return [build_prompt(subject, topics, count) for subject in SUBJECTS]


def test_there_are_enough_long_prompts_and_a_very_long_one(prompts):
    assert len(prompts) >= 4
    assert min(prompt.tokens for prompt in prompts) >= 2000
    assert max(prompt.tokens for prompt in prompts) >= 3500


def test_a_prompt_keeps_its_limit_and_comes_close_to_it(prompts):
    for subject, prompt in zip(SUBJECTS, prompts, strict=True):
        assert subject.tokens * 0.98 <= prompt.tokens <= subject.tokens
        assert prompt.tokens == count(prompt.messages)


def test_the_same_interpreter_always_makes_the_same_prompts(prompts):
    topics = dict(reversed(list(load_topics().items())))
    assert [build_prompt(subject, topics, count) for subject in SUBJECTS] == prompts


def test_every_prompt_ends_with_its_question(prompts):
    for subject, prompt in zip(SUBJECTS, prompts, strict=True):
        assert prompt.messages[-1]["content"].endswith(subject.question)


def test_no_two_prompts_share_a_block_of_tokens(prompts):
    # So that nothing of one prompt can be served from another one's blocks.
    for one, other in itertools.combinations([prompt.messages[0]["content"] for prompt in prompts], 2):
        common = len(
            list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        )
        assert common < 60


def test_the_warm_up_is_none_of_the_measured_prompts(prompts):
    warm_up = build_prompt(WARM_UP, load_topics(), count)
    assert warm_up.title not in [prompt.title for prompt in prompts]


def test_chapters_that_this_python_lacks_are_replaced_by_others():
    topics = {"a": "word\n" * 2000, "b": "other\n" * 4000}
    prompt = build_prompt(Subject("T", ("gone", "b"), 2000, "Why?"), topics, count)
    assert prompt.tokens >= 1960
    assert "other" in prompt.messages[0]["content"]


def test_a_python_with_too_little_text_is_told_so():
    with pytest.raises(PromptError, match=r"'T' has \d+ tokens in this Python's reference; 2000 are needed"):
        build_prompt(Subject("T", ("a",), 2000, "Why?"), {"a": "short"}, count)
