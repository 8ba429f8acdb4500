"""A directory below the host on the real engine: what it gives back after a restart, and what it must never cost."""

from __future__ import annotations

import random
import shutil

import pytest
from expect import DAMAGED, SAME_MATHS, assert_equal_outputs, distance
from kinds import on
from shelf import FsSubject
from stored_files import swap_halves_of_all_blocks
from tiny_models import full_chunk_tokens, prompts_of

PROMPTS = prompts_of(seed=1, number=6, tokens=1100)
"""Together they need more blocks than the device has, and fewer chunks than the host."""
MORE_THAN_THE_HOST = prompts_of(seed=7, number=10, tokens=1100)
DAMAGED_FILES = 6


def _series(verb: str, outcome: str, tier: str = "fs") -> str:
    return f"kvoffload_tier_chunks{{outcome={outcome},tier={tier},verb={verb}}}"


def _chunks(subject: FsSubject) -> int:
    return full_chunk_tokens(PROMPTS, subject.tokens_per_chunk) // subject.tokens_per_chunk


def _store(subject: FsSubject) -> None:
    with subject.counting() as counted:
        assert_equal_outputs(subject.engine.generate(PROMPTS), subject.cold(PROMPTS), subject.cold_tolerance)
    assert counted[_series("store", "done")] == _chunks(subject) == len(subject.chunk_files())


@on("fs", "fs-tp2")
def test_a_restarted_engine_gets_every_stored_chunk_from_disk_with_equal_outputs(subject: FsSubject) -> None:
    _store(subject)
    subject.restart()
    with subject.counting() as counted:
        found = subject.engine.generate(PROMPTS)
    chunks = _chunks(subject)
    assert counted[_series("load", "done")] == counted["kvoffload_loaded_chunks"] == chunks
    assert counted["kvoffload_stored_chunks"] == 0, "what is there was written again"
    assert counted["vllm:external_prefix_cache_hits"] == chunks * subject.tokens_per_chunk
    assert [output.cached_tokens for output in found] == [
        chunks * subject.tokens_per_chunk // len(PROMPTS)
    ] * 6
    assert_equal_outputs(found, subject.warm(PROMPTS), subject.warm_tolerance)


@on("fs-canonical")
def test_what_one_tensor_parallel_size_has_stored_is_loaded_under_another(subject: FsSubject) -> None:
    tokens = _chunks(subject) * subject.tokens_per_chunk
    # There and back, so that the engine ends as the kind that it is.
    for stores, loads in ((1, 2), (2, 1)):
        assert subject.tp == stores
        _store(subject)
        subject.restart(tp=loads)
        with subject.counting() as counted:
            found = subject.engine.generate(PROMPTS)
        assert counted[_series("load", "done")] == _chunks(subject)
        assert counted["kvoffload_stored_chunks"] == 0
        assert sum(output.cached_tokens for output in found) == tokens
        # The sums over the heads were rounded under the other size.
        assert_equal_outputs(found, subject.cold(PROMPTS), SAME_MATHS)
        subject.clear()


@on("fs-canonical")
def test_negative_control_heads_in_the_wrong_order_change_the_output(subject: FsSubject) -> None:
    _store(subject)
    for path in subject.chunk_files():
        swap_halves_of_all_blocks(path, subject.model.layers)
    subject.restart()
    found = subject.engine.generate(PROMPTS)
    assert all(output.cached_tokens > 0 for output in found)
    cold = subject.cold(PROMPTS)
    assert all(distance(ours, theirs) > DAMAGED for ours, theirs in zip(found, cold, strict=True))


@on("fs")
def test_without_the_canonical_layout_another_tensor_parallel_size_is_a_miss(subject: FsSubject) -> None:
    _store(subject)
    own = set(subject.chunk_files())
    subject.restart(tp=2)
    found = subject.engine.generate(PROMPTS)
    assert [output.cached_tokens for output in found] == [0] * len(PROMPTS)
    assert_equal_outputs(found, subject.cold(PROMPTS), subject.cold_tolerance)
    subject.restart(tp=1)
    # Another configuration has a directory of its own, which the next test shall not count.
    others = set(subject.chunk_files()) - own
    assert len(others) == _chunks(subject)
    for path in others:
        path.unlink()
    found = subject.engine.generate(PROMPTS)
    assert sum(output.cached_tokens for output in found) == _chunks(subject) * subject.tokens_per_chunk
    assert_equal_outputs(found, subject.warm(PROMPTS), subject.warm_tolerance)


@on("fs")
def test_after_sigkill_damaged_files_are_recomputed_and_replaced_and_all_others_loaded(
    subject: FsSubject,
) -> None:
    _store(subject)
    source = random.Random(0)
    for path in source.sample(sorted(subject.chunk_files()), DAMAGED_FILES):
        with path.open("r+b") as file:
            file.seek(source.randrange(path.stat().st_size - 4096))
            page = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([page[0] ^ 0x10]))
    subject.restart(kill=True)
    with subject.counting() as counted:
        found = subject.engine.generate(PROMPTS)
    assert_equal_outputs(found, subject.cold(PROMPTS), SAME_MATHS)
    assert 0 < counted[_series("load", "corrupt")] <= DAMAGED_FILES
    assert counted[_series("load", "done")] > 0
    assert counted["kvoffload_stored_chunks"] > 0
    # What was recomputed is in its place again, and whole.
    assert len(subject.chunk_files()) == _chunks(subject)
    subject.evict_device()
    found = subject.engine.generate(PROMPTS)
    assert sum(output.cached_tokens for output in found) == _chunks(subject) * subject.tokens_per_chunk
    assert_equal_outputs(found, subject.warm(PROMPTS), subject.warm_tolerance)


@on("fs")
def test_what_the_host_has_evicted_comes_from_disk(subject: FsSubject) -> None:
    prompts = MORE_THAN_THE_HOST
    cold = subject.cold(prompts)
    assert_equal_outputs(subject.engine.generate(prompts), cold, subject.cold_tolerance)
    with subject.counting() as counted:
        found = subject.engine.generate(prompts)
    assert counted["kvoffload_evicted_chunks"] > 0
    assert counted[_series("load", "done")] > 0
    assert [output.cached_tokens for output in found] == [1024] * len(prompts)
    assert_equal_outputs(found, subject.warm(prompts), subject.warm_tolerance)


@on("fs")
def test_a_directory_that_is_removed_while_the_engine_runs_costs_hits_and_nothing_else(
    subject: FsSubject,
) -> None:
    prompts = MORE_THAN_THE_HOST
    cold = subject.cold(prompts)
    subject.engine.generate(prompts)
    shutil.rmtree(subject.root)
    with subject.counting() as counted:
        found = subject.engine.generate(prompts)
    assert_equal_outputs(found, cold, SAME_MATHS)
    assert counted[_series("load", "missing")] > 0, "nothing was looked for in the directory"
    assert found[0].cached_tokens == 0
    # It is made again, and used again.
    assert subject.chunk_files()
    found = subject.engine.generate(prompts)
    assert [output.cached_tokens for output in found] == [1024] * len(prompts)
    assert_equal_outputs(found, cold, SAME_MATHS)


@on("fs", "fs-tp2")
def test_a_full_disk_costs_its_stores_and_nothing_else(subject: FsSubject) -> None:
    if not subject.small_disk.exists:
        pytest.skip("mounting a small file system is not permitted here")
    with subject.counting() as counted:
        found = subject.engine.generate(PROMPTS)
    assert_equal_outputs(found, subject.cold(PROMPTS), subject.cold_tolerance)
    assert counted["kvoffload_tier_events{event=store_error_enospc,tier=small}"] > 0, "the disk was not full"
    assert counted[_series("store", "rejected", "small")] > 0
    assert counted.get(_series("store", "failed", "small"), 0) == 0
    # The other directory got everything.
    assert counted[_series("store", "done")] == _chunks(subject)
    subject.evict_device()
    found = subject.engine.generate(PROMPTS)
    assert sum(output.cached_tokens for output in found) == _chunks(subject) * subject.tokens_per_chunk
    assert_equal_outputs(found, subject.warm(PROMPTS), subject.warm_tolerance)
