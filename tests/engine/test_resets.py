"""A reset forgets everything, whatever is in flight, and nothing comes back."""

from __future__ import annotations

from expect import SAME_MATHS, assert_equal_outputs
from faulty_spec import Fault
from kinds import on
from shelf import Subject
from tiny_models import prompts_of

PROMPT, OTHER = prompts_of(seed=10, number=2, tokens=1100)


@on("tp1", "serve", "tp2")
def test_after_a_reset_everything_is_a_miss(subject: Subject) -> None:
    subject.engine.generate([PROMPT, OTHER])
    with subject.counting() as counted:
        assert subject.engine.reset(connector=True)
        found = subject.engine.generate([PROMPT, OTHER])
    assert [output.cached_tokens for output in found] == [0, 0]
    assert counted["kvoffload_loaded_chunks"] == 0
    assert counted["kvoffload_stored_chunks"] == 16
    assert counted["kvoffload_resets"] == 1
    assert_equal_outputs(found, subject.cold([PROMPT, OTHER]), subject.cold_tolerance)


@on("tp1")
def test_a_reset_of_the_device_alone_keeps_the_host(subject: Subject) -> None:
    subject.engine.generate([PROMPT])
    assert subject.engine.reset(connector=False)
    assert subject.engine.generate([PROMPT])[0].cached_tokens == 1024


@on("tp1", "tp2")
def test_a_store_in_flight_does_not_come_back_after_a_reset(subject: Subject) -> None:
    subject.faults(store=Fault(hold=True))
    subject.engine.submit([PROMPT], max_tokens=1)
    subject.engine.step_until(lambda now: now["stores"] == 1 and not now["unfinished"], "done, storing")
    with subject.counting() as counted:
        assert subject.engine.reset(connector=True)
        subject.faults()
        subject.engine.collect()
    assert counted["kvoffload_stored_chunks"] == 0
    assert subject.engine.state()["resident"] == 0
    found = subject.engine.generate([PROMPT])
    assert found[0].cached_tokens == 0
    assert_equal_outputs(found, subject.cold([PROMPT]), subject.cold_tolerance)
    subject.evict_device()
    assert subject.engine.generate([PROMPT])[0].cached_tokens == 1024, "nothing was stored after the reset"


@on("tp1", "tp2")
def test_a_load_in_flight_ends_well_after_a_reset(subject: Subject) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    subject.faults(load=Fault(hold=True))
    ids = subject.engine.submit([PROMPT])
    subject.engine.step_until(lambda now: now["loads"] == 1, "a load in flight")
    # The device cannot be reset while a request holds blocks; ours can.
    subject.engine.reset(connector=True)
    assert subject.engine.state()["resident"] == 0
    subject.faults()
    outputs = subject.engine.collect()
    assert [output.id for output in outputs] == ids
    assert_equal_outputs(outputs, subject.warm([PROMPT]), subject.warm_tolerance)
    assert subject.engine.state()["resident"] == 0, "what was loaded from before the reset was stored again"
    subject.evict_device()
    found = subject.engine.generate([PROMPT])
    assert found[0].cached_tokens == 0
    assert_equal_outputs(found, subject.cold([PROMPT]), subject.cold_tolerance)


# Not with async scheduling: the engine itself refuses it there as soon as there is any connector that loads (it gives
# the blocks of preempted requests back a step later).
@on("tp1", "tp2")
def test_a_reset_of_running_requests_lets_them_go_on(subject: Subject) -> None:
    cold = subject.cold([PROMPT, OTHER], max_tokens=40)
    ids = subject.engine.submit([PROMPT, OTHER], max_tokens=40)
    subject.engine.step(10)
    assert subject.engine.reset(connector=True, running=True)
    outputs = {output.id: output for output in subject.engine.collect()}
    assert_equal_outputs([outputs[request_id] for request_id in ids], cold, SAME_MATHS)
