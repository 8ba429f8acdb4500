"""The main promise: what the device evicts comes back from host memory, and nobody can tell from the output."""

from __future__ import annotations

from itertools import pairwise

from expect import DAMAGED, SAME_MATHS, assert_equal_outputs, distance
from faulty_spec import Fault
from kinds import on
from shelf import Subject
from tiny_models import full_chunk_tokens, prompts_of, random_tokens

PROMPTS = prompts_of(seed=1, number=6, tokens=1100)
ALL = ("tp1", "async", "small-steps", "no-device-cache", "serve", "tp2")


@on(*ALL)
def test_evicted_prompts_come_back_with_equal_outputs(subject: Subject) -> None:
    wanted = full_chunk_tokens(PROMPTS, subject.tokens_per_chunk)
    chunks = wanted // subject.tokens_per_chunk
    assert sum(map(len, PROMPTS)) > subject.usable_blocks * subject.model.tokens_per_block, (
        "nothing is evicted"
    )
    cold = subject.cold(PROMPTS)

    with subject.counting() as first:
        found = subject.engine.generate(PROMPTS)
    assert_equal_outputs(found, cold, subject.cold_tolerance)
    assert first["kvoffload_stored_chunks"] == chunks
    assert first["kvoffload_loaded_chunks"] == 0
    assert first["vllm:external_prefix_cache_hits"] == 0

    with subject.counting() as second:
        found = subject.engine.generate(PROMPTS)
    assert second["kvoffload_loaded_chunks"] == chunks
    assert second["kvoffload_loaded_bytes"] == first["kvoffload_stored_bytes"] > 0
    assert second["kvoffload_stored_chunks"] == 0, "what is there was written again"
    assert second["vllm:external_prefix_cache_hits"] >= 0.9 * wanted
    assert [output.cached_tokens for output in found] == [wanted // len(PROMPTS)] * len(PROMPTS)
    # The loaded run computes the end of the prompt only, like one that hits the engine's own cache.
    assert_equal_outputs(found, subject.warm(PROMPTS), subject.warm_tolerance)
    assert_equal_outputs(found, cold, SAME_MATHS)

    other = prompts_of(seed=2, number=1, tokens=700)
    assert_equal_outputs(subject.engine.generate(other), subject.cold(other), subject.cold_tolerance)


@on("tp1", "async", "tp2")
def test_negative_control_damaged_kv_changes_the_output(subject: Subject) -> None:
    cold = subject.cold(PROMPTS[:3])
    subject.engine.generate(PROMPTS[:3])
    subject.evict_device()
    subject.faults(load=Fault(damage=True))
    with subject.counting() as counted:
        found = subject.engine.generate(PROMPTS[:3])
    assert counted["kvoffload_loaded_chunks"] > 0
    assert all(distance(ours, theirs) > DAMAGED for ours, theirs in zip(found, cold, strict=True)), (
        "the outputs do not depend on the loaded KV: no test here proves anything"
    )


@on("tp1", "serve", "tp2")
def test_concurrent_prompts_are_stored_and_loaded(subject: Subject) -> None:
    cold = subject.cold(PROMPTS)
    for expected in ("kvoffload_stored_chunks", "kvoffload_loaded_chunks"):
        with subject.counting() as counted:
            found = subject.engine.generate(PROMPTS, one_by_one=False)
        assert_equal_outputs(found, cold, SAME_MATHS)
        assert counted[expected] > 0


@on("tp1", "async", "no-device-cache")
def test_requests_for_the_same_prompt_at_once_are_all_served_from_the_host(subject: Subject) -> None:
    prompt = PROMPTS[0]
    subject.engine.generate([prompt])
    subject.evict_device()
    found = subject.engine.generate([prompt, prompt], one_by_one=False)
    assert_equal_outputs(found, subject.cold([prompt, prompt]), SAME_MATHS)
    full = full_chunk_tokens([prompt], subject.tokens_per_chunk)
    assert [output.cached_tokens for output in found] == [full, full]


@on("small-steps")
def test_a_load_begins_in_the_middle_of_a_chunk_where_the_device_has_its_first_half(subject: Subject) -> None:
    prompt = random_tokens(30, 1100)
    block, chunk = subject.model.tokens_per_block, subject.tokens_per_chunk
    assert chunk == 2 * block
    shared = 3 * block
    other = prompt[:shared] + random_tokens(31, 400)
    subject.engine.generate([prompt])
    subject.evict_device()
    # The device now has one and a half chunks of the prompt: one loaded, the next block computed for another request.
    (partial,) = subject.engine.generate([other])
    assert partial.cached_tokens == chunk

    with subject.counting() as counted:
        (found,) = subject.engine.generate([prompt])
    assert found.cached_tokens == full_chunk_tokens([prompt], chunk)
    assert counted["vllm:prefix_cache_hits"] == shared
    assert counted["vllm:external_prefix_cache_hits"] == found.cached_tokens - shared
    assert counted["kvoffload_loaded_chunks"] == 3
    last = subject.journal("load")[-1]
    assert len(last["blocks"]) == 5, (
        "the first half of the chunk must not be written over what the device has"
    )
    assert_equal_outputs([found], subject.cold([prompt]), SAME_MATHS)


@on("small-steps")
def test_the_next_turn_finds_the_answer_if_answers_are_stored(subject: Subject) -> None:
    prompt = random_tokens(40, 500)
    (answer,) = subject.engine.generate([prompt], max_tokens=300)
    assert_equal_outputs([answer], subject.cold([prompt], max_tokens=300), SAME_MATHS)
    subject.evict_device()
    turn = [*prompt, *answer.tokens, *random_tokens(41, 50)]
    (found,) = subject.engine.generate([turn])
    # 500 + 300 - 1: the last token was sampled, but its KV was never computed.
    assert found.cached_tokens == 799 // subject.tokens_per_chunk * subject.tokens_per_chunk == 768
    assert_equal_outputs([found], subject.cold([turn]), SAME_MATHS)


@on("tp1")
def test_only_prompts_are_stored_by_default(subject: Subject) -> None:
    prompt = random_tokens(42, 500)
    with subject.counting() as counted:
        subject.engine.generate([prompt], max_tokens=300)
    assert counted["kvoffload_stored_chunks"] == 500 // subject.tokens_per_chunk


@on("tp1", "small-steps")
def test_a_longer_prompt_loads_the_part_that_is_known_and_stores_the_rest(subject: Subject) -> None:
    whole = random_tokens(50, 1900)
    lengths = [600, 1100, 1500, 1900]
    for shorter, longer in pairwise(lengths):
        subject.engine.generate([whole[:shorter]])
        subject.evict_device()
        (found,) = subject.engine.generate([whole[:longer]])
        assert found.cached_tokens == shorter // subject.tokens_per_chunk * subject.tokens_per_chunk
        assert_equal_outputs([found], subject.cold([whole[:longer]]), SAME_MATHS)
        subject.evict_device()


@on("tp1")
def test_a_prompt_that_ends_on_a_block_edge_still_gets_its_last_token_computed(subject: Subject) -> None:
    for tokens in (1024, 1025, 1023):
        prompt = random_tokens(60 + tokens, tokens)
        subject.engine.generate([prompt])
        subject.evict_device()
        (found,) = subject.engine.generate([prompt])
        assert_equal_outputs([found], subject.cold([prompt]), SAME_MATHS)
        assert found.cached_tokens >= 1023 // 128 * 128


@on("tp1", "tp2")
def test_more_prompts_than_the_host_holds_are_evicted_there_and_served_correctly(subject: Subject) -> None:
    capacity = int(subject.engine.metrics()["kvoffload_capacity_chunks"])
    prompts = prompts_of(seed=7, number=capacity // 8 + 4, tokens=1100)
    cold = subject.cold(prompts)
    with subject.counting() as counted:
        assert_equal_outputs(subject.engine.generate(prompts), cold, subject.cold_tolerance)
    assert counted["kvoffload_evicted_chunks"] >= 8 * len(prompts) - capacity
    assert subject.engine.metrics()["kvoffload_resident_chunks"] <= capacity
    # The newest are there, the oldest are not.
    newest_first = list(reversed(prompts))
    found = subject.engine.generate(newest_first[:4])
    assert_equal_outputs(found, list(reversed(cold))[:4], SAME_MATHS)
    assert [output.cached_tokens for output in found] == [1024] * 4
    (oldest,) = subject.engine.generate(prompts[:1])
    assert oldest.cached_tokens == 0
    assert_equal_outputs([oldest], cold[:1], subject.cold_tolerance)


@on("async", "gemma3-async")
def test_async_scheduling_is_really_on(subject: Subject) -> None:
    facts = subject.engine.facts()
    assert facts["async_scheduling"]
    assert facts["scheduler"] == "AsyncScheduler"


@on("no-device-cache")
def test_without_a_device_cache_every_repeat_is_served_from_the_host(subject: Subject) -> None:
    prompt = PROMPTS[0]
    cold = subject.cold([prompt])
    for round_number in range(3):
        with subject.counting() as counted:
            found = subject.engine.generate([prompt])
        assert_equal_outputs(found, cold, SAME_MATHS)
        assert counted["kvoffload_loaded_chunks"] == (8 if round_number else 0)
        assert counted["vllm:prefix_cache_hits"] == 0
