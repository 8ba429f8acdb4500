"""A trace that a real engine records of its requests, read and replayed: as many unique blocks and hits as the engine had."""

from __future__ import annotations

import re
import time
from pathlib import Path

from kinds import on
from shelf import FsSubject
from tiny_models import full_chunk_tokens, prompts_of, random_tokens

from kvoffload.policies.lru import LRUPolicy
from kvoffload.sim.replay.counting import count_prefix_hits
from kvoffload.sim.traces.base import TraceRequest
from kvoffload.sim.traces.opening import open_trace


def _requests(path: Path, count: int) -> list[TraceRequest]:
    """Wait for the file to have so many; a thread writes it."""
    end = time.monotonic() + 30
    while len(path.read_bytes().splitlines()) <= count and time.monotonic() < end:
        time.sleep(0.05)
    return list(open_trace(path))


def _settle(subject: FsSubject) -> int:
    """The first steps of an engine can take so long that their stores are given up; returns how many are recorded."""
    subject.engine.generate(prompts_of(seed=30, number=2, tokens=300))
    return len(list(open_trace(subject.recorded_trace())))


@on("fs")
def test_a_recorded_trace_replays_with_the_hits_that_the_engine_had(subject: FsSubject) -> None:
    before, path = _settle(subject), subject.recorded_trace()
    prompts = prompts_of(seed=31, number=3, tokens=1100)
    longer = [*prompts[0], *random_tokens(3_199, 300)]
    asked = [*prompts, *prompts, longer]
    outputs = []
    for prompt in asked:
        outputs += subject.engine.generate([prompt])
        subject.evict_device()
    found = _requests(path, before + len(asked))[before:]

    assert [request.input_tokens for request in found] == [len(prompt) for prompt in asked]
    span = subject.tokens_per_chunk
    assert [len(request.keys) for request in found] == [len(prompt) // span for prompt in asked]
    unique = {key for request in found for key in request.keys}
    assert len(unique) * span == full_chunk_tokens(prompts, span) + (1400 // span - 1100 // span) * span
    hits = count_prefix_hits(found, span, LRUPolicy(10_000))
    assert hits.hit_tokens == sum(output.cached_tokens for output in outputs) > 0
    # Summed over four sizes: the engine's own curve reaches its metrics, too.
    assert 0 < subject.engine.metrics()["kvoffload_estimated_hit_ratio"] <= 4


@on("fs")
def test_a_recorded_trace_names_no_token_and_no_hash_of_the_engine(subject: FsSubject) -> None:
    _settle(subject)
    subject.engine.generate(prompts_of(seed=32, number=1, tokens=600))
    path = subject.recorded_trace()
    text = path.read_text()
    assert set(re.findall(r'"([a-z_]+)":', text)) == {"block_tokens", "arrival_s", "input_tokens", "blocks"}
    of_engine = {file.stem.partition("_")[0] for file in subject.chunk_files()}
    assert of_engine
    blocks = set(re.findall(r"[0-9a-f]{16}", text))
    assert blocks
    assert not any(block in name for block in blocks for name in of_engine)
    assert path.stat().st_mode & 0o777 == 0o600
