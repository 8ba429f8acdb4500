"""A small real model with windows beside full attention, on real text: Gemma 3 270M, from a package (see `real_models`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from expect import DAMAGED, SAME_MATHS, assert_equal_outputs, distance
from kinds import on
from shelf import FsSubject
from stored_files import turn_signs

from kvoffload.cli.demo.prompts import load_topics

BEGIN = 2
"""The begin-of-sequence token, which the tokenizer of the package leaves out; without it the model talks nonsense."""
CHAPTERS = ("debugger", "formatstrings")
"""Two prompts, of which the device holds one."""
TOKENS = 1200
BOUNDARY = 1152
WINDOW_CHUNKS, WINDOW_GROUPS = 4, 5
FULL_CHUNKS = BOUNDARY // 128
LOADED = FULL_CHUNKS + WINDOW_GROUPS * WINDOW_CHUNKS
DONE = "kvoffload_tier_chunks{{outcome=done,tier=fs,verb={}}}"


def _prompts(model: str) -> list[list[int]]:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    topics = load_topics()
    prompts = []
    for chapter in CHAPTERS:
        tokens = [token for token in tokenizer.encode(topics[chapter]).ids if token != BEGIN]
        prompts.append([BEGIN, *tokens[: TOKENS - 1]])
        assert len(prompts[-1]) == TOKENS
    return prompts


@pytest.mark.real_model
@on("gemma3-270m")
def test_a_real_hybrid_model_goes_on_from_what_was_evicted_and_from_what_an_engine_before_it_has_stored(
    subject: FsSubject,
) -> None:
    assert json.loads((Path(subject.model.path) / "config.json").read_text())["sliding_window"] == 512
    assert subject.engine.facts()["groups"].count("SlidingWindowSpec") == WINDOW_GROUPS
    prompts = _prompts(subject.model.path)
    cold = subject.cold(prompts, max_tokens=8)
    # It is a model that knows what it reads: it is sure of most of its own words.
    assert all(max(step.values()) > -5 for output in cold for step in output.logprobs or [])

    with subject.counting() as counted:
        found = subject.engine.generate(prompts, max_tokens=8)
    assert_equal_outputs(found, cold, SAME_MATHS)
    assert [output.cached_tokens for output in found] == [0] * len(prompts)
    assert counted[DONE.format("store")] == counted["kvoffload_stored_chunks"]

    # One more prompt, so that nothing is left on the device of the others.
    stored = set(subject.chunk_files())
    spoilt = [BEGIN, *prompts[0][600:], *prompts[1][601:]]
    (right,) = subject.engine.generate([spoilt], max_tokens=8)
    spoilt_files = set(subject.chunk_files()) - stored

    with subject.counting() as counted:
        found = subject.engine.generate(prompts, max_tokens=8)
    assert [output.cached_tokens for output in found] == [BOUNDARY] * len(prompts)
    assert counted["vllm:external_prefix_cache_hits"] == BOUNDARY * len(prompts), "nothing was evicted"
    assert counted["kvoffload_loaded_chunks"] == LOADED * len(prompts)
    assert counted["kvoffload_stored_chunks"] == 0
    assert_equal_outputs(found, cold, SAME_MATHS)

    # Negative control: what the last prompt has stored is damaged.
    for path in spoilt_files:
        turn_signs(path)
    subject.restart()
    with subject.counting() as counted:
        found = subject.engine.generate([*prompts, spoilt], max_tokens=8)
    assert [output.cached_tokens for output in found] == [BOUNDARY] * len(found)
    assert counted[DONE.format("load")] == counted["kvoffload_loaded_chunks"] == LOADED * len(found)
    assert_equal_outputs(found[:-1], cold, SAME_MATHS)
    assert distance(found[-1], right) > DAMAGED, "the outputs do not depend on the loaded KV"
