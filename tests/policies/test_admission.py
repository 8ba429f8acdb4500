"""Admission: how much of a request, which of its chunks; and memory is bounded whatever is offered."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.policies.admission import Admission, AllOf, PromptOnly, SizeLimit, TouchFilter
from kvoffload.testing.policy_tests import key

offers = st.lists(st.lists(st.integers(0, 6), unique=True, max_size=5), max_size=25)


@settings(max_examples=100, deadline=None)
@given(offers, st.integers(2, 4))
def test_a_key_is_admitted_at_every_nth_offer_while_nothing_is_forgotten(
    batches: list[list[int]], threshold: int
) -> None:
    admission = TouchFilter(threshold, max_keys=100)
    seen: Counter[int] = Counter()
    for batch in batches:
        seen.update(batch)
        right = [key(number) for number in batch if seen[number] % threshold == 0]
        assert admission.admit([key(number) for number in batch]) == right


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1), offers)
def test_below_two_everything_is_admitted_in_order_and_nothing_is_remembered(
    threshold: int, batches: list[list[int]]
) -> None:
    admission = TouchFilter(threshold, max_keys=1)
    for batch in batches:
        keys = [key(number) for number in batch]
        assert admission.admit(keys) == keys
        assert not admission._counts


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 500), unique=True, max_size=40), max_size=20), st.integers(1, 10))
def test_no_more_keys_are_remembered_than_allowed(batches: list[list[int]], max_keys: int) -> None:
    admission = TouchFilter(2, max_keys)
    for batch in batches:
        admission.admit([key(number) for number in batch])
        assert len(admission._counts) <= max_keys


def test_the_key_that_was_offered_longest_ago_is_forgotten_first() -> None:
    admission = TouchFilter(2, max_keys=2)
    admission.admit([key(1), key(2)])
    admission.admit([key(3)])
    assert admission.admit([key(2)]) == [key(2)]
    assert admission.admit([key(1)]) == []


def test_clear_forgets_all_offers() -> None:
    admission = TouchFilter(2, max_keys=9)
    admission.admit([key(1)])
    admission.clear()
    assert admission.admit([key(1)]) == []


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.none() | st.integers(1, 50))
def test_a_size_limit_cuts_long_prompts_and_leaves_short_ones_out(
    prompt: int, shortest: int, most: int | None
) -> None:
    limit = SizeLimit(shortest, most).max_tokens(prompt)
    assert limit == (0 if prompt < shortest else most)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 50), st.none() | st.integers(1, 50))
def test_of_several_limits_the_tightest_holds(prompt: int, most: int | None) -> None:
    limit = AllOf([Admission(), SizeLimit(0, most), PromptOnly()]).max_tokens(prompt)
    assert limit == min(prompt, prompt if most is None else most)
    assert AllOf([Admission(), SizeLimit(0, most)]).max_tokens(prompt) == most


def test_a_chunk_that_one_filter_leaves_out_is_not_counted_by_those_behind_it() -> None:
    twice, thrice = TouchFilter(2, 9), TouchFilter(3, 9)
    both = AllOf([twice, thrice])
    answers = [both.admit([key(1)]) for _ in range(6)]
    assert answers == [[], [], [], [], [], [key(1)]]
    both.admit([key(2)])
    both.clear()
    assert both.admit([key(2)]) == []
