"""An object store below the real engine: two engines of different sizes share a bucket, and lose it in the middle."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_process import Engine, EngineSettings
from expect import SAME_MATHS, assert_equal_outputs
from shelf import BLOCKS, HOST_BYTES, Shelf
from tiny_models import full_chunk_tokens, prompts_of

# The server that the tests of the tier use.
sys.path.append(str(Path(__file__).parent.parent / "tiers" / "obj"))
from s3_server import BUCKET, S3Server

PROMPTS = prompts_of(seed=1, number=6, tokens=1100)
OTHERS = prompts_of(seed=2, number=3, tokens=1100)
LATER = prompts_of(seed=3, number=3, tokens=1100)
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("bucket"))
    server.start()
    yield server
    server.kill()


def settings_of(shelf: Shelf, server: S3Server, folder: Path, *, tp: int, place: str) -> EngineSettings:
    """Host, a directory of its own, and the bucket that all share."""
    folder.mkdir()
    quick = {"request_timeout_s": 2.0, "call_deadline_s": 3.0, "poll_interval_s": 0.2, "retry_after_s": 1.0}
    store = {"type": "obj", "url": f"s3://{BUCKET}/{place}", **server.options(folder), **quick}
    options: dict[str, Any] = {
        "cpu_bytes_to_use": HOST_BYTES,
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "root_dir": str(folder / "fs"), "min_free_bytes": 0}, store],
        "load_policy": "always",
        "canonical_layout": True,
    }
    return EngineSettings(model=shelf.model("llama"), blocks=BLOCKS, tp=tp, kvoffload=options)


def chunks_of(prompts: list[list[int]], tokens_per_chunk: int) -> int:
    return full_chunk_tokens(prompts, tokens_per_chunk) // tokens_per_chunk


def count(engine: Engine, verb: str, outcome: str, tier: str = "obj") -> int:
    return int(engine.metrics().get(f"kvoffload_tier_chunks{{outcome={outcome},tier={tier},verb={verb}}}", 0))


def wait_for_stores(engine: Engine, chunks: int) -> None:
    """Stores go on after an answer; an engine that has nothing to do is asked something now and then."""
    end = time.monotonic() + PATIENCE_S
    while count(engine, "store", "done") < chunks and time.monotonic() < end:
        engine.generate([[1, 2, 3]])
        time.sleep(0.1)
    assert count(engine, "store", "done") >= chunks


def test_engines_of_two_tensor_parallel_sizes_share_a_bucket(
    shelf: Shelf, server: S3Server, tmp_path: Path
) -> None:
    settings = settings_of(shelf, server, tmp_path / "one", tp=1, place="shared")
    chunks = chunks_of(PROMPTS, settings.model.tokens_per_block)
    one = shelf.engine(settings, "obj-one").start()
    try:
        assert_equal_outputs(one.generate(PROMPTS), shelf.baseline("llama", 1, PROMPTS), SAME_MATHS)
        wait_for_stores(one, chunks)
        other = settings_of(shelf, server, tmp_path / "two", tp=2, place="shared")
        two = Engine(other, tmp_path / "two.log").start()
        try:
            found = two.generate(PROMPTS)
            assert count(two, "load", "done") == chunks
            assert sum(output.cached_tokens for output in found) == full_chunk_tokens(
                PROMPTS, settings.model.tokens_per_block
            )
            assert_equal_outputs(found, shelf.baseline("llama", 1, PROMPTS), SAME_MATHS)
            # What came from the bucket is in its directory now.
            two.generate([[1, 2, 3]])
            end = time.monotonic() + PATIENCE_S
            while count(two, "store", "done", "fs") < chunks and time.monotonic() < end:
                two.generate([[1, 2, 3]])
            assert len(list((tmp_path / "two" / "fs").rglob("*.kv"))) == chunks
            two.assert_no_internal_error()
        finally:
            two.stop()
        one.assert_no_internal_error()
    finally:
        one.stop()


def test_a_server_that_is_killed_costs_no_answer_and_is_used_again(
    shelf: Shelf, server: S3Server, tmp_path: Path
) -> None:
    settings = settings_of(shelf, server, tmp_path / "one", tp=1, place="killed")
    below = [settings.kvoffload["secondary_tiers"][1]] if settings.kvoffload else []
    # Without the directory, so that it is the bucket alone that could give anything back.
    settings = dataclasses.replace(
        settings, kvoffload={**(settings.kvoffload or {}), "secondary_tiers": below}
    )
    one = shelf.engine(settings, "obj-killed").start()
    try:
        one.generate(PROMPTS)
        wait_for_stores(one, chunks_of(PROMPTS, settings.model.tokens_per_block))
        server.kill()
        for prompts in (OTHERS, PROMPTS):
            assert_equal_outputs(one.generate(prompts), shelf.baseline("llama", 1, prompts), SAME_MATHS)
        server.start()
        before = count(one, "store", "done")
        time.sleep(1.0)
        assert_equal_outputs(one.generate(LATER), shelf.baseline("llama", 1, LATER), SAME_MATHS)
        wait_for_stores(one, before + 1)
        one.assert_no_internal_error()
    finally:
        one.stop()
