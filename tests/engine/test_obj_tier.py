"""An object store below the real engine: two engines of different sizes share a bucket, and lose it in the middle."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_process import Engine, EngineSettings, Output
from expect import SAME_MATHS, assert_equal_outputs
from shelf import BLOCKS, HOST_BYTES, PATIENT, Shelf
from tiny_models import full_chunk_tokens, prompts_of

# The server that the tests of the tier use.
sys.path.append(str(Path(__file__).parent.parent / "tiers" / "obj"))
from s3_server import BUCKET, S3Server

FIRST = prompts_of(seed=1, number=3, tokens=1100)
SECOND = prompts_of(seed=2, number=3, tokens=1100)
THIRD = prompts_of(seed=3, number=3, tokens=1100)
WITHOUT = prompts_of(seed=4, number=2, tokens=1100)
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("bucket"))
    server.start()
    yield server
    server.kill()


def settings_of(shelf: Shelf, server: S3Server, folder: Path, *, tp: int) -> EngineSettings:
    """Host, a directory of its own, and the bucket that all share."""
    folder.mkdir()
    store = {
        "type": "obj",
        "url": f"s3://{BUCKET}/shared",
        **server.options(folder),
        # Two cores have two engines and a server here.
        "request_timeout_s": 20.0,
        "call_deadline_s": 25.0,
        "deadline_s": 30.0,
        "poll_interval_s": 0.5,
        "retry_after_s": 1.0,
    }
    options: dict[str, Any] = {
        "cpu_bytes_to_use": HOST_BYTES,
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "root_dir": str(folder / "fs"), "min_free_bytes": 0}, store],
        "load_policy": "always",
        "promotion_deadline_s": 60.0,
        "canonical_layout": True,
        **PATIENT,
    }
    return EngineSettings(model=shelf.model("llama"), blocks=BLOCKS, tp=tp, kvoffload=options)


def count(engine: Engine, verb: str, outcome: str, tier: str = "obj") -> int:
    return int(engine.metrics().get(f"kvoffload_tier_chunks{{outcome={outcome},tier={tier},verb={verb}}}", 0))


def tier_metrics(engine: Engine) -> str:
    """What is told if a test fails."""
    return "\n".join(f"{name} {value}" for name, value in engine.metrics().items() if "tier" in name)


def wait_for(engine: Engine, verb: str, chunks: int, tier: str = "obj") -> None:
    """Stores go on after an answer; an engine that has nothing to do is asked something now and then."""
    end = time.monotonic() + PATIENCE_S
    while count(engine, verb, "done", tier) < chunks and time.monotonic() < end:
        engine.generate([[1, 2, 3]])
        time.sleep(0.1)
    assert count(engine, verb, "done", tier) >= chunks, tier_metrics(engine)


def assert_loads(engine: Engine, prompts: list[list[int]], computed: list[Output]) -> None:
    """All that can be of these prompts comes from the bucket, and the answers are those of who computed them."""
    tokens = full_chunk_tokens(prompts, engine.settings.model.tokens_per_block)
    before = count(engine, "load", "done")
    time.sleep(1.0)  # what others have stored is known after a poll
    found = engine.generate(prompts)
    assert sum(output.cached_tokens for output in found) == tokens, tier_metrics(engine)
    chunks = tokens // engine.settings.model.tokens_per_block
    assert count(engine, "load", "done") - before == chunks, tier_metrics(engine)
    assert_equal_outputs(found, computed, SAME_MATHS)


def compute(engine: Engine, prompts: list[list[int]]) -> list[Output]:
    """Answers to new prompts; waits until their chunks are in the bucket."""
    before = count(engine, "store", "done")
    computed = engine.generate(prompts)
    assert [output.cached_tokens for output in computed] == [0] * len(prompts)
    tokens = full_chunk_tokens(prompts, engine.settings.model.tokens_per_block)
    wait_for(engine, "store", before + tokens // engine.settings.model.tokens_per_block)
    return computed


def test_engines_of_two_tensor_parallel_sizes_share_a_bucket_that_goes_away_and_comes_back(
    shelf: Shelf, server: S3Server, tmp_path: Path
) -> None:
    one = shelf.engine(settings_of(shelf, server, tmp_path / "one", tp=1), "obj-one").start()
    two = Engine(settings_of(shelf, server, tmp_path / "two", tp=2), tmp_path / "two.log")
    try:
        first, second = compute(one, FIRST), compute(one, SECOND)
        two.start()
        assert_loads(two, FIRST, first)
        # Read through: what came from far away is near now.
        directory = tmp_path / "two" / "fs"
        wait_for(two, "store", count(two, "load", "done"), "fs")
        assert len(list(directory.rglob("*.kv"))) == count(two, "load", "done")
        # And the other way round.
        third = compute(two, THIRD)
        assert_loads(one, THIRD, third)

        # The server is lost while loads from it are under way.
        asked = two.submit(SECOND)
        two.step(2)
        server.kill()
        answers = {output.id: output for output in two.collect()}
        assert_equal_outputs([answers[name] for name in asked], second, SAME_MATHS)
        alone = one.generate(WITHOUT)
        assert one.reset(connector=False)
        assert_equal_outputs(one.generate(FIRST), first, SAME_MATHS)

        server.start()
        time.sleep(1.5)
        later = compute(one, prompts_of(seed=5, number=2, tokens=1100))
        assert len(later) == 2
        assert one.reset(connector=False)
        assert_equal_outputs(one.generate(WITHOUT), alone, SAME_MATHS)
        for engine in (one, two):
            engine.assert_no_internal_error()
            assert count(engine, "load", "corrupt") == 0

        # A restart after SIGKILL, on a machine that has nothing: the bucket is all that is left.
        for engine in (one, two):
            engine.kill()
        fresh = shelf.engine(settings_of(shelf, server, tmp_path / "fresh", tp=1), "obj-fresh").start()
        try:
            assert_loads(fresh, [*FIRST, *SECOND], [*first, *second])
            fresh.assert_no_internal_error()
        finally:
            fresh.stop()
    finally:
        one.stop()
        two.stop()
