"""The engine takes blocks away (preemption, end, abort) while copies still read them: no wrong byte, no hang."""

from __future__ import annotations

from expect import DAMAGED, SAME_MATHS, assert_equal_outputs, distance
from faulty_spec import Fault
from kinds import on
from shelf import TRANSFER_TIMEOUT_S, Subject
from tiny_models import prompts_of, random_tokens

FIVE = prompts_of(seed=5, number=5, tokens=500)
"""Four blocks each: together they fill the device, and every answer needs one more."""
SIX = prompts_of(seed=6, number=6, tokens=240)
"""The same for three groups: two blocks in each, and a third one after 16 tokens of the answer."""
ANSWER = 60
PROMPT = random_tokens(70, 1100)
BIG = random_tokens(71, 2000)
"""Needs 16 of the 20 blocks: some of those that PROMPT's store still reads."""


def _crowd(subject: Subject) -> list[list[int]]:
    return SIX if subject.kind.startswith("gemma3") else FIVE


@on("tp1", "async", "tp2", "small-steps", "gemma3-async")
def test_preempted_requests_go_on_with_equal_outputs(subject: Subject) -> None:
    crowd = _crowd(subject)
    wanted = subject.cold(crowd, max_tokens=ANSWER)
    subject.faults(store=Fault(delay_s=0.05), load=Fault(delay_s=0.05))
    with subject.counting() as counted:
        found = subject.engine.generate(crowd, one_by_one=False, max_tokens=ANSWER)
    assert counted["vllm:num_preemptions"] > 0, "the blocks did not run out"
    assert_equal_outputs(found, wanted, SAME_MATHS)
    subject.faults()
    # What was stored meanwhile is right.
    subject.evict_device()
    found = subject.engine.generate(crowd)
    assert all(output.cached_tokens > 0 for output in found)
    assert_equal_outputs(found, subject.cold(crowd), SAME_MATHS)


@on("tp1", "async", "tp2", "gemma3-async")
def test_a_preempted_request_gets_its_prompt_back_from_the_host(subject: Subject) -> None:
    with subject.counting() as counted:
        subject.engine.generate(_crowd(subject), one_by_one=False, max_tokens=ANSWER)
    assert counted["vllm:num_preemptions"] > 0
    assert counted["kvoffload_loaded_chunks"] > 0


@on("tp1", "async", "tp2")
def test_blocks_given_away_by_a_finished_request_are_stored_first(subject: Subject) -> None:
    _fence(subject, lambda: subject.engine.submit([PROMPT], max_tokens=1), finish=True)


@on("tp1", "async", "tp2")
def test_blocks_given_away_by_an_aborted_request_are_stored_first(subject: Subject) -> None:
    _fence(subject, lambda: subject.engine.submit([PROMPT], max_tokens=500), finish=False)


def _fence(subject: Subject, submit, *, finish: bool) -> None:
    wanted_big = subject.cold([BIG])
    subject.faults(store=Fault(delay_s=1.0))
    with subject.counting() as counted:
        ids = submit()
        if finish:
            subject.engine.step_until(lambda now: not now["unfinished"], "the first one finished")
        else:
            subject.engine.step_until(lambda now: now["stores"] == 1, "a store in flight")
            subject.engine.abort(ids)
        assert subject.engine.state()["stores"] == 1, "the store is over already: nothing is tested"
        (big,) = subject.engine.submit([BIG])
        outputs = {output.id: output for output in subject.engine.collect()}
    assert counted["kvoffload_fenced_jobs"] >= 1
    assert_equal_outputs([outputs[big]], wanted_big, SAME_MATHS)
    subject.faults()
    assert counted["kvoffload_store_failed_chunks"] == 0
    subject.evict_device()
    found = subject.engine.generate([PROMPT])
    assert found[0].cached_tokens == 1024
    assert_equal_outputs(found, subject.warm([PROMPT]), subject.warm_tolerance)


@on("tp1", "tp2")
def test_a_store_that_cannot_be_finished_in_time_is_void_and_the_engine_goes_on(subject: Subject) -> None:
    # On one worker only, where there are two: what the other one has copied must not count.
    subject.faults(store=Fault(hold=True, ranks=(subject.tp - 1,)))
    with subject.counting() as counted:
        subject.engine.submit([PROMPT], max_tokens=1)
        subject.engine.step_until(lambda now: not now["unfinished"], "the first one finished")
        (big,) = subject.engine.submit([BIG])
        outputs = {
            output.id: output
            for output in subject.engine.collect(deadline_s=60 + TRANSFER_TIMEOUT_S, until_idle=False)
        }
        subject.faults()
        subject.engine.collect()
    assert_equal_outputs([outputs[big]], subject.cold([BIG]), SAME_MATHS)
    assert counted["kvoffload_fenced_jobs"] >= 1
    subject.evict_device()
    (found,) = subject.engine.generate([PROMPT])
    assert found.cached_tokens == 0, "a store that read blocks of somebody else was published"
    assert_equal_outputs([found], subject.cold([PROMPT]), SAME_MATHS)


@on("tp1", "tp2")
def test_negative_control_without_fences_wrong_kv_is_stored_and_seen(subject: Subject) -> None:
    # Held, not delayed: the store reads when BIG has written over its blocks, however slow the machine is.
    subject.faults(store=Fault(hold=True, unfenced=True))
    subject.engine.submit([PROMPT], max_tokens=1)
    subject.engine.step_until(lambda now: not now["unfinished"], "the first one finished")
    subject.engine.submit([BIG])
    subject.engine.collect(until_idle=False)
    subject.faults()
    subject.engine.collect()
    subject.evict_device()
    (found,) = subject.engine.generate([PROMPT])
    assert found.cached_tokens == 1024
    assert distance(found, subject.warm([PROMPT])[0]) > DAMAGED, (
        "the tests of fences cannot see a missing fence"
    )
