"""What a single request may ask for: limits, and not to be served from a cache."""

from __future__ import annotations

import pytest
from expect import SAME_MATHS, assert_equal_outputs, prompt_distance
from kinds import on
from shelf import FsSubject, Subject
from tiny_models import prompts_of

PROMPT, OTHER = prompts_of(seed=11, number=2, tokens=1100)
MORE_THAN_THE_HOST = prompts_of(seed=12, number=10, tokens=1100)


@on("tp1", "serve")
def test_prompt_logprobs_are_computed_and_not_loaded(subject: Subject) -> None:
    (wanted,) = subject.cold([PROMPT], prompt_logprobs=3)
    subject.engine.generate([PROMPT])
    subject.evict_device()
    with subject.counting() as counted:
        (found,) = subject.engine.generate([PROMPT], prompt_logprobs=3)
    assert found.cached_tokens == 0
    assert counted["kvoffload_loaded_chunks"] == counted["kvoffload_lookup_tokens"] == 0
    assert_equal_outputs([found], [wanted], subject.cold_tolerance)
    assert prompt_distance(found, wanted) <= subject.cold_tolerance


@on("tp1", "serve")
@pytest.mark.parametrize(
    ("limit", "cached"), [(0, 0), (127, 0), (128, 128), (300, 256), (5000, 1024), (None, 1024)]
)
def test_max_load_tokens_bounds_what_is_loaded(subject: Subject, limit: int | None, cached: int) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    (found,) = subject.engine.generate([PROMPT], kv_transfer_params={"max_load_tokens": limit})
    assert found.cached_tokens == cached
    assert_equal_outputs([found], subject.cold([PROMPT]), SAME_MATHS)


@on("tp1")
@pytest.mark.parametrize(("limit", "stored"), [(0, 0), (127, 0), (128, 1), (300, 2), (5000, 8)])
def test_max_offload_tokens_bounds_what_is_stored(subject: Subject, limit: int, stored: int) -> None:
    with subject.counting() as counted:
        (found,) = subject.engine.generate([PROMPT], kv_transfer_params={"max_offload_tokens": limit})
    assert counted["kvoffload_stored_chunks"] == stored
    assert_equal_outputs([found], subject.cold([PROMPT]), subject.cold_tolerance)
    subject.evict_device()
    assert subject.engine.generate([PROMPT])[0].cached_tokens == 128 * stored


@on("tp1", "serve")
@pytest.mark.parametrize(
    "params",
    [
        {"max_load_tokens": -1},
        {"max_load_tokens": "many"},
        {"max_offload_tokens": True},
        {"skip": 1},
        {"kv_load_tiers": ["host", "tape"]},
        {"pin": True, "pin_ttl_s": -1},
    ],
    ids=str,
)
def test_limits_that_are_not_valid_cost_the_cache_and_are_counted(subject: Subject, params: dict) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    with subject.counting() as counted:
        found = subject.engine.generate([PROMPT, OTHER], kv_transfer_params=params)
    assert [output.cached_tokens for output in found] == [0, 0]
    assert_equal_outputs(found, subject.cold([PROMPT, OTHER]), subject.cold_tolerance)
    name = list(params)[-1]
    for output in found:
        assert f"kv_transfer_params: {name}=" in output.kv_transfer_params["kvoffload_error"]
    said = subject.engine.log().count(f"without the cache: kv_transfer_params: {name}=")
    assert said == 1, "a line for each parameter, not for each request"
    assert counted["kvoffload_bad_request_params"] == 2
    assert counted["kvoffload_stored_chunks"] == 0
    subject.evict_device()
    assert subject.engine.generate([PROMPT])[0].cached_tokens == 1024


@on("tp1")
def test_wishes_of_other_connectors_are_passed_over(subject: Subject) -> None:
    with subject.counting() as counted:
        subject.engine.generate([PROMPT], kv_transfer_params={"do_remote_prefill": False, "whatever": [1]})
    assert counted["kvoffload_bad_request_params"] == 0
    assert counted["kvoffload_stored_chunks"] == 8


@on("tp1", "serve")
def test_a_skipped_request_is_neither_looked_up_nor_stored(subject: Subject) -> None:
    subject.engine.generate([PROMPT])
    subject.evict_device()
    with subject.counting() as counted:
        found = subject.engine.generate([PROMPT, OTHER], kv_transfer_params={"skip": True})
    assert [output.cached_tokens for output in found] == [0, 0]
    assert_equal_outputs(found, subject.cold([PROMPT, OTHER]), subject.cold_tolerance)
    moved = ("lookup_tokens", "hit_tokens", "loaded_chunks", "stored_chunks")
    assert [counted[f"kvoffload_{name}"] for name in moved] == [0, 0, 0, 0]
    assert found[0].kv_transfer_params is None
    subject.evict_device()
    assert subject.engine.generate([PROMPT])[0].cached_tokens == 1024


@on("tp1")
def test_a_pinned_prompt_survives_what_evicts_all_others(subject: Subject) -> None:
    subject.engine.generate([PROMPT], kv_transfer_params={"pin": True, "pin_ttl_s": 3600})
    subject.engine.generate([OTHER])
    with subject.counting() as counted:
        subject.engine.generate(MORE_THAN_THE_HOST)
    assert counted["kvoffload_evicted_chunks"] > 8
    assert subject.engine.metrics()["kvoffload_kept_chunks"] == 8
    subject.evict_device()
    (found,) = subject.engine.generate([PROMPT])
    assert found.cached_tokens == 1024
    assert_equal_outputs([found], subject.warm([PROMPT]), subject.warm_tolerance)
    assert (
        subject.engine.generate([OTHER], kv_transfer_params={"max_offload_tokens": 0})[0].cached_tokens == 0
    )
    subject.clear()
    subject.engine.generate([OTHER])
    assert subject.engine.metrics()["kvoffload_kept_chunks"] == 0


@on("fs")
def test_a_request_uses_the_tiers_that_it_names(subject: FsSubject) -> None:
    for only_host in ({"kv_store_tiers": ["host"]}, {"ttl_s": 3600}):
        subject.engine.generate([OTHER], kv_transfer_params=only_host)
        assert subject.chunk_files() == []
        subject.clear()
    subject.engine.generate([PROMPT], kv_transfer_params={"kv_store_tiers": ["fs"]})
    assert len(subject.chunk_files()) == 8
    subject.engine.generate(MORE_THAN_THE_HOST, kv_transfer_params={"kv_store_tiers": []})
    assert len(subject.chunk_files()) == 8
    done = "kvoffload_tier_chunks{outcome=done,tier=fs,verb=load}"
    for tiers, loaded in (([], 0), ([{"medium": "CPU"}], 0), (["host", "fs"], 8)):
        subject.evict_device()
        with subject.counting() as counted:
            (found,) = subject.engine.generate(
                [PROMPT], kv_transfer_params={"kv_load_tiers": tiers, "max_offload_tokens": 0}
            )
        assert (found.cached_tokens, counted.get(done, 0)) == (128 * loaded, loaded), tiers
        assert_equal_outputs([found], subject.cold([PROMPT]), SAME_MATHS)


@on("tp1", "serve")
def test_a_cache_salt_isolates_its_requests(subject: Subject) -> None:
    cold = subject.cold([PROMPT])
    owners = [{"cache_salt": "one"}, {"cache_salt": "two"}, {}]
    for owner in owners:
        (found,) = subject.engine.generate([PROMPT], **owner)
        assert found.cached_tokens == 0, f"{owner} was served with somebody else's KV"
        subject.evict_device()
    for owner in owners:
        (found,) = subject.engine.generate([PROMPT], **owner)
        assert found.cached_tokens == 1024
        assert_equal_outputs([found], cold, SAME_MATHS)
        subject.evict_device()
