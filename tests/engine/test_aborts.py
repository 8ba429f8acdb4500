"""Requests that end early, at every moment: nothing is left behind, and the engine serves on."""

from __future__ import annotations

from expect import SAME_MATHS, assert_equal_outputs
from faulty_spec import Fault
from kinds import on
from shelf import Subject
from tiny_models import prompts_of, random_tokens

PROMPT, OTHER, THIRD = prompts_of(seed=3, number=3, tokens=1100)
BLOCKS = 9
"""Device blocks of such a prompt and a short answer."""
LONGEST = random_tokens(39, 2030)
"""Needs 16 of the 20 blocks."""


def _assert_all_blocks_usable(subject: Subject) -> None:
    found = subject.engine.generate([LONGEST])
    assert_equal_outputs(found, subject.cold([LONGEST]), SAME_MATHS)


@on("tp1", "tp2")
def test_abort_before_the_first_schedule_leaves_no_job_and_no_pin(subject: Subject) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    with subject.counting() as counted:
        # One that would load, and one that would store.
        ids = subject.engine.submit([PROMPT, OTHER])
        subject.engine.abort(ids)
        state = subject.engine.state()
        assert (state["loads"], state["stores"], state["pinned"]) == (0, 0, 0)
        assert subject.engine.collect() == []
    assert subject.engine.state()["known_requests"] == 0
    assert counted["kvoffload_loaded_chunks"] == counted["kvoffload_stored_chunks"] == 0
    assert counted["kvoffload_lookup_tokens"] == 0
    found = subject.engine.generate([PROMPT])
    assert_equal_outputs(found, subject.warm([PROMPT]), subject.warm_tolerance)


@on("tp1", "async", "tp2")
def test_abort_while_a_load_is_in_flight_keeps_its_blocks_until_it_ends(subject: Subject) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    subject.faults(load=Fault(hold=True))
    ids = subject.engine.submit([PROMPT])
    state = subject.engine.step_until(lambda now: now["loads"] == 1, "a load in flight")
    assert state["pinned"] == 8
    subject.engine.abort(ids)
    subject.engine.step(3)
    state = subject.engine.state()
    # The copy still writes into these blocks: nobody else may have them, and its chunks must stay where they are.
    assert state["pinned"] == 8
    assert state["free_blocks"] <= subject.usable_blocks - 8, (
        "blocks were given back while a copy writes into them"
    )

    # Somebody else computes meanwhile, in other blocks.
    other = subject.engine.submit([OTHER])
    outputs = subject.engine.collect(until_idle=False)
    assert [output.id for output in outputs] == other
    assert_equal_outputs(outputs, subject.cold([OTHER]), SAME_MATHS)
    assert subject.engine.state()["pinned"] == 8

    subject.faults()
    subject.engine.collect()
    state = subject.engine.state()
    assert (state["pinned"], state["free_blocks"]) == (0, subject.usable_blocks)
    assert subject.engine.metrics()["kvoffload_pinned_chunks"] == 0
    found = subject.engine.generate([PROMPT])
    assert found[0].cached_tokens == 1024
    assert_equal_outputs(found, subject.warm([PROMPT]), subject.warm_tolerance)
    _assert_all_blocks_usable(subject)


@on("tp1")
def test_abort_while_a_store_is_in_flight_publishes_what_was_computed(subject: Subject) -> None:
    subject.faults(store=Fault(hold=True))
    ids = subject.engine.submit([PROMPT], max_tokens=200)
    subject.engine.step_until(lambda now: now["stores"] == 1, "a store in flight")
    subject.engine.abort(ids)
    subject.engine.step(3)
    assert subject.engine.state()["stores"] == 1
    subject.faults()
    subject.engine.collect()
    assert subject.engine.state()["resident"] == 8
    subject.evict_device()
    found = subject.engine.generate([PROMPT])
    assert found[0].cached_tokens == 1024
    assert_equal_outputs(found, subject.warm([PROMPT]), subject.warm_tolerance)


@on("small-steps")
def test_abort_in_the_middle_of_a_prefill_stores_only_what_was_computed(subject: Subject) -> None:
    ids = subject.engine.submit([PROMPT])
    # 192 tokens a step: after three steps two chunks of 256 tokens are complete.
    subject.engine.step(3)
    subject.engine.abort(ids)
    subject.engine.collect()
    assert subject.engine.state()["resident"] == 2
    subject.evict_device()
    found = subject.engine.generate([PROMPT])
    assert found[0].cached_tokens == 512
    assert_equal_outputs(found, subject.cold([PROMPT]), SAME_MATHS)
    _assert_all_blocks_usable(subject)


@on("tp1", "async", "tp2")
def test_abort_while_running_frees_everything(subject: Subject) -> None:
    for steps in (1, 2, 5, 30):
        ids = subject.engine.submit([PROMPT, OTHER], max_tokens=100)
        subject.engine.step(steps)
        subject.engine.abort(ids)
    subject.engine.collect()
    assert subject.engine.state()["free_blocks"] == subject.usable_blocks
    _assert_all_blocks_usable(subject)
    found = subject.engine.generate([PROMPT, OTHER])
    assert_equal_outputs(found, subject.cold([PROMPT, OTHER]), SAME_MATHS)


@on("tp1")
def test_abort_while_waiting_for_a_chunk_that_is_just_written(subject: Subject) -> None:
    subject.faults(store=Fault(hold=True))
    subject.engine.submit([PROMPT], max_tokens=2)
    subject.engine.step_until(
        lambda now: now["stores"] == 1 and not now["unfinished"], "the first one done, storing"
    )
    subject.evict_device()
    ids = subject.engine.submit([PROMPT])
    subject.engine.step(3)
    state = subject.engine.state()
    assert state["statuses"] == ["WAITING"], "it should wait for the chunks of the first one"
    subject.engine.abort(ids)
    subject.engine.step(2)
    subject.faults()
    subject.engine.collect()
    assert subject.engine.state()["known_requests"] == 0
    found = subject.engine.generate([PROMPT])
    assert found[0].cached_tokens == 1024
    assert_equal_outputs(found, subject.warm([PROMPT]), subject.warm_tolerance)


@on("tp1")
def test_a_waiting_request_is_served_when_the_chunk_is_there(subject: Subject) -> None:
    subject.faults(store=Fault(delay_s=0.5))
    first = subject.engine.submit([PROMPT], max_tokens=1)
    subject.engine.step_until(
        lambda now: now["stores"] == 1 and not now["unfinished"], "the first one done, storing"
    )
    subject.evict_device()
    second = subject.engine.submit([PROMPT])
    outputs = {output.id: output for output in subject.engine.collect()}
    assert outputs[first[0]].cached_tokens == 0
    assert outputs[second[0]].cached_tokens == 1024
    assert_equal_outputs([outputs[second[0]]], subject.warm([PROMPT]), subject.warm_tolerance)


@on("tp1")
def test_a_chunk_that_is_not_written_in_time_is_a_miss(subject: Subject) -> None:
    subject.faults(store=Fault(hold=True))
    subject.engine.submit([PROMPT], max_tokens=1)
    subject.engine.step_until(
        lambda now: now["stores"] == 1 and not now["unfinished"], "the first one done, storing"
    )
    subject.evict_device()
    with subject.counting() as counted:
        # Its blocks are not those that the store reads: 9 of them were used, 20 are there.
        ids = subject.engine.submit([PROMPT])
        outputs = [output for output in subject.engine.collect(until_idle=False) if output.id in ids]
        subject.faults()
        subject.engine.collect()
    assert [output.cached_tokens for output in outputs] == [0]
    assert_equal_outputs(outputs, subject.cold([PROMPT]), subject.cold_tolerance)
    assert counted["kvoffload_pending_timeouts"] == 1


@on("serve")
def test_a_server_survives_aborts_at_any_moment(subject: Subject) -> None:
    prompts = prompts_of(seed=4, number=4, tokens=1100)
    cold = subject.cold(prompts)
    subject.engine.generate(prompts)
    subject.evict_device()
    for _ in range(4):
        ids = subject.engine.submit(prompts, max_tokens=50)
        subject.engine.abort(ids[:2])
        subject.engine.abort(ids[2:])
    assert_equal_outputs(subject.engine.generate(prompts), cold, SAME_MATHS)
