"""A load that fails, on any worker: recomputed, counted, stored anew, never tried for ever."""

from __future__ import annotations

import pytest
from expect import SAME_MATHS, assert_equal_outputs
from faulty_spec import Fault
from kinds import on
from shelf import Subject
from tiny_models import full_chunk_tokens, prompts_of

PROMPT, OTHER = prompts_of(seed=8, number=2, tokens=1100)

FAULTS = {
    "all": Fault(fail="all"),
    "first": Fault(fail="first"),
    "middle": Fault(fail="middle"),
    "last": Fault(fail="last"),
    "raising": Fault(raises=True),
}


def _chunks(subject: Subject) -> int:
    return full_chunk_tokens([PROMPT], subject.tokens_per_chunk) // subject.tokens_per_chunk


def _check_failure(subject: Subject, fault: Fault, lost: int) -> None:
    cold = subject.cold([PROMPT])
    chunks = _chunks(subject)
    subject.engine.generate([PROMPT])
    subject.evict_device()
    subject.faults(load=fault)
    with subject.counting() as counted:
        found = subject.engine.generate([PROMPT])
    assert_equal_outputs(found, cold, SAME_MATHS)
    assert found[0].finish_reason == "length"
    assert counted["kvoffload_load_failed_chunks"] == lost
    assert counted["kvoffload_loaded_chunks"] == chunks - lost
    assert counted["kvoffload_stored_chunks"] == lost, "the chunk was not stored anew"
    jobs = {entry["job"] for entry in subject.journal("load")}
    assert len(jobs) == 1, "a load that failed was tried again"

    subject.faults()
    subject.evict_device()
    with subject.counting() as counted:
        found = subject.engine.generate([PROMPT])
    assert counted["kvoffload_loaded_chunks"] == chunks
    assert counted["kvoffload_load_failed_chunks"] == 0
    assert_equal_outputs(found, subject.warm([PROMPT]), max(SAME_MATHS, subject.warm_tolerance))
    assert_equal_outputs(subject.engine.generate([OTHER]), subject.cold([OTHER]), subject.cold_tolerance)


@on("tp1")
@pytest.mark.parametrize("name", FAULTS)
def test_failed_chunks_are_recomputed_and_stored_anew(subject: Subject, name: str) -> None:
    _check_failure(subject, FAULTS[name], 8 if name in {"all", "raising"} else 1)


@on("async", "no-device-cache")
@pytest.mark.parametrize("name", ["all", "middle"])
def test_failed_chunks_are_recomputed_by_other_schedulers_too(subject: Subject, name: str) -> None:
    _check_failure(subject, FAULTS[name], 8 if name == "all" else 1)


@on("small-steps")
@pytest.mark.parametrize("name", ["all", "first", "middle"])
def test_failed_chunks_of_several_blocks_are_recomputed(subject: Subject, name: str) -> None:
    _check_failure(subject, FAULTS[name], 4 if name == "all" else 1)


@on("tp2")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["all", "first", "middle", "raising"])
def test_a_failure_on_one_worker_is_a_failure(subject: Subject, name: str, rank: int) -> None:
    fault = FAULTS[name]
    fault = Fault(fail=fault.fail, raises=fault.raises, ranks=(rank,))
    _check_failure(subject, fault, 8 if name in {"all", "raising"} else 1)


@on("tp2")
def test_a_worker_that_fails_early_waits_for_the_one_that_is_still_copying(subject: Subject) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    # Rank 1 fails at once, rank 0 holds its copy: the blocks may not be used before both have ended.
    subject.faults(load=Fault(fail="all", delay_s=0.5, ranks=(1,)))
    ids = subject.engine.submit([PROMPT])
    subject.engine.step_until(lambda now: now["loads"] == 1, "a load in flight")
    outputs = subject.engine.collect()
    assert [output.id for output in outputs] == ids
    assert_equal_outputs(outputs, subject.cold([PROMPT]), SAME_MATHS)


@on("tp1", "tp2")
def test_two_prompts_that_share_the_failed_prefix_are_both_right(subject: Subject) -> None:
    one, two = PROMPT, [*PROMPT[:700], *OTHER[700:]]
    cold = subject.cold([one, two])
    subject.engine.generate([one, two])
    subject.evict_device()
    subject.faults(load=Fault(fail="middle", delay_s=0.05))
    found = subject.engine.generate([one, two], one_by_one=False)
    assert_equal_outputs(found, cold, SAME_MATHS)


@on("tp1")
def test_a_load_that_always_fails_never_stops_the_engine(subject: Subject) -> None:
    prompts = prompts_of(seed=9, number=3, tokens=700)
    cold = subject.cold(prompts)
    subject.engine.generate(prompts)
    subject.faults(load=Fault(fail="all"))
    for _ in range(3):
        subject.evict_device()
        assert_equal_outputs(subject.engine.generate(prompts), cold, SAME_MATHS)


@on("serve")
def test_the_engines_default_for_failed_loads_is_pointed_out_at_start(subject: Subject) -> None:
    lines = [
        line
        for line in subject.engine.log().splitlines()
        if "kv_load_failure_policy" in line and "WARNING" in line
    ]
    assert len(lines) == 1
    assert "recompute" in lines[0]


@on("serve")
def test_with_the_engines_default_a_failed_load_fails_the_request_and_nobody_else(subject: Subject) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    subject.faults(load=Fault(fail="middle"))
    (found,) = subject.engine.generate([PROMPT])
    assert found.finish_reason == "error"
    subject.faults()
    cold = subject.cold([PROMPT, OTHER])
    assert_equal_outputs(subject.engine.generate([PROMPT, OTHER]), cold, SAME_MATHS)
    subject.evict_device()
    with subject.counting() as counted:
        assert_equal_outputs(subject.engine.generate([PROMPT, OTHER]), cold, SAME_MATHS)
    assert counted["kvoffload_loaded_chunks"] == 16
