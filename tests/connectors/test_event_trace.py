"""Events become a trace: valid whatever comes, bounded, without secrets, and with the hits that a tier below would have had."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("msgspec")
pytest.importorskip("zmq")

from publishing import BLOCK_TOKENS, TOKEN, ToyEngine, batch, chain_of, stored

from kvoffload.connectors.events.batches import Batch, StoredBlocks
from kvoffload.connectors.events.trace import EventTrace, TraceFileError
from kvoffload.connectors.events.wire import decode_batch
from kvoffload.keys.offload_key import make_offload_key
from kvoffload.policies.lru import LRUPolicy
from kvoffload.sim.replay.counting import PrefixHits, UnitCache, count_prefix_hits
from kvoffload.sim.traces.base import TraceRequest
from kvoffload.sim.traces.opening import open_trace

FULL = {"block_tokens": 16, "group": 0, "kind": "full_attention", "medium": "GPU"}


def recorded(path: Path, messages, max_bytes: int = 10**7) -> list[TraceRequest]:
    trace = EventTrace(path, max_bytes)
    for message in messages:
        found = decode_batch(message)
        assert found is not None
        trace.add(found)
    trace.close()
    trace.close()
    return list(open_trace(path))


HASHES = st.binary(min_size=1, max_size=1)
STORED = st.builds(
    StoredBlocks,
    hashes=st.lists(HASHES, max_size=4).map(tuple),
    parent=st.none() | HASHES,
    block_tokens=st.sampled_from([16, 16, 16, 32]),
    group=st.sampled_from([0, 0, 1]),
    kind=st.sampled_from(["full_attention", "full_attention", None, "sliding_window"]),
    medium=st.sampled_from(["GPU", "GPU", None, "CPU"]),
)
BATCHES = st.builds(
    Batch,
    at_s=st.floats(-1e12, 1e12),
    stored=st.lists(STORED, max_size=4).map(tuple),
    clears=st.integers(0, 1),
    unreadable=st.just(0),
)


@settings(max_examples=40)
@given(st.lists(BATCHES, max_size=15), st.sampled_from([10**7, 700]))
def test_any_sequence_of_events_is_a_valid_trace_or_none(batches: list[Batch], max_bytes: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        trace = EventTrace(path, max_bytes)
        for one in batches:
            trace.add(one)
        trace.close()
        if not trace.counts.runs:
            assert not path.exists()
            return
        assert path.stat().st_size == trace.counts.file_bytes <= max_bytes
        found = list(open_trace(path))
        assert len(found) == trace.counts.runs
        assert sum(len(request.keys) for request in found) == trace.counts.blocks
        assert all(
            request.input_tokens == len(request.keys) * trace.selection.block_tokens for request in found
        )


def traffic(seed: int, count: int) -> list[str]:
    """Prompts that go on from one another, repeat and share beginnings."""
    source, known = random.Random(seed), [""]
    for _ in range(count):
        begin = source.choice(known[-12:])
        tail = "".join(source.choice("xyz") for _ in range(source.randrange(1, 9)))
        known.append((begin + tail)[:40] if source.random() < 0.7 else begin + "q")
    return known[1:]


def direct_hits(asked: list[list[bytes]], capacity: int) -> PrefixHits:
    """A tier below that is asked for what the device lacked, without events and files."""
    cache, found = UnitCache(LRUPolicy(capacity)), PrefixHits()
    for blocks in asked:
        keys = [make_offload_key(block, 0) for block in blocks]
        found.hit_tokens += cache.prefix_of(keys) * BLOCK_TOKENS
        found.total_tokens += len(keys) * BLOCK_TOKENS
        cache.access(reversed(keys))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capacity", [10_000, 60, 25])
def test_the_trace_has_the_hits_of_a_tier_below_the_device(tmp_path: Path, seed: int, capacity: int) -> None:
    engine, messages = ToyEngine(device_blocks=20), []
    for text in traffic(seed, 120):
        messages += engine.run(chain_of(text))
        engine.now_s += 6.0
    found = recorded(tmp_path / "t.jsonl", messages)
    asked = [blocks for blocks in engine.asked if blocks]
    assert len(asked) < len(engine.asked), "the device has no hits, so this proves little"
    assert [len(request.keys) for request in found] == [len(blocks) for blocks in asked]
    hits = count_prefix_hits(found, BLOCK_TOKENS, LRUPolicy(capacity))
    assert hits == direct_hits(asked, capacity)
    assert 0 < hits.hit_tokens < hits.total_tokens


def test_prompts_without_a_pause_between_them_have_the_same_hits_in_a_large_tier(tmp_path: Path) -> None:
    engine = ToyEngine(device_blocks=20)
    messages = [message for text in traffic(9, 120) for message in engine.run(chain_of(text))]
    hits = count_prefix_hits(recorded(tmp_path / "t.jsonl", messages), BLOCK_TOKENS, LRUPolicy(10_000))
    assert hits == direct_hits(engine.asked, 10_000)


def test_the_file_says_what_it_is_and_names_no_token_and_no_hash_of_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    recorded(path, [batch(1e9, stored([b"secret-1", b"secret-2"]))])
    lines = path.read_text().splitlines()
    assert set(json.loads(lines[0])) == {"block_tokens", "note"}
    assert "device's cache did not have" in lines[0]
    assert set(json.loads(lines[1])) == {"arrival_s", "input_tokens", "blocks"}
    text = path.read_text()
    assert not any(part in text for part in (str(TOKEN), "secret", b"secret-1".hex(), "tenant"))
    assert path.stat().st_mode & 0o777 == 0o600
    other = tmp_path / "u.jsonl"
    recorded(other, [batch(1e9, stored([b"secret-1", b"secret-2"]))])
    blocks = [set(re.findall(r'"([0-9a-f]{16})"', one.read_text())) for one in (path, other)]
    assert len(blocks[0] | blocks[1]) == 4


def test_one_group_of_full_attention_is_taken_and_the_rest_is_counted(tmp_path: Path) -> None:
    trace = EventTrace(tmp_path / "t.jsonl", 10**6)
    others = [
        {**FULL, "kind": "sliding_window"},
        {**FULL, "group": 2},
        {**FULL, "block_tokens": 32, "group": 1},
        {**FULL, "medium": "CPU"},
    ]
    chosen = StoredBlocks((b"a", b"b"), None, **{**FULL, "group": 1})
    events = [StoredBlocks((b"x",), None, **fields) for fields in others]
    trace.add(Batch(1.0, (events[0], chosen, *events[1:]), 1, 2))
    trace.close()
    assert (trace.counts.blocks, trace.counts.clears, trace.counts.unreadable) == (2, 1, 2)
    assert trace.selection.group == 1
    assert sorted(trace.selection.left_out.values()) == [1, 1, 1, 1]


def test_a_full_file_ends_with_a_whole_line(tmp_path: Path) -> None:
    messages = [batch(float(10 * number), stored([b"%d" % number])) for number in range(100)]
    found = recorded(tmp_path / "t.jsonl", messages, max_bytes=1000)
    assert 0 < len(found) < 100
    assert (tmp_path / "t.jsonl").stat().st_size <= 1000


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("mine")
    with pytest.raises(TraceFileError, match="exists and is not overwritten"):
        EventTrace(tmp_path / "t.jsonl", 1000)
    with pytest.raises(TraceFileError, match="cannot be made"):
        EventTrace(tmp_path / "nowhere" / "t.jsonl", 1000)
    assert (tmp_path / "t.jsonl").read_text() == "mine"


def test_a_disk_that_is_full_is_one_line(tmp_path: Path) -> None:
    trace = EventTrace(tmp_path / "t.jsonl", 10**6)
    with trace._file:
        trace._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")
    trace.add(Batch(1.0, (StoredBlocks((b"a",), None, **FULL),), 0, 0))
    with pytest.raises(TraceFileError, match="No space left on device; it can be read"):
        trace.close_runs()
    with pytest.raises(TraceFileError, match="No space left"):
        trace.close()
    assert trace._file.closed
