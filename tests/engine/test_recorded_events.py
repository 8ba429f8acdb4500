"""KV events of a real engine without the connector, recorded by `kvoffload record`: its trace is what the engine computed."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from engine_process import EngineSettings
from shelf import BLOCKS, Shelf
from tiny_models import prompts_of, random_tokens

from kvoffload.sim.traces.opening import open_trace

KVOFFLOAD = [sys.executable, "-m", "kvoffload.cli.main"]
DEADLINE_S = 60


@contextlib.contextmanager
def _recording(endpoint: str, path: Path) -> Iterator[None]:
    """Recorded within the block, from the moment on when the engine has answered."""
    log = path.with_suffix(".log")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*KVOFFLOAD, "record", "--events", endpoint, str(path)], stdout=subprocess.DEVNULL, stderr=errors
        )
    try:
        end = time.monotonic() + DEADLINE_S
        while "connected" not in log.read_text() and time.monotonic() < end:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield
        # The engine's thread publishes a moment after the answer; what it tells last is written after a pause.
        size = -1
        while path.stat().st_size != size:
            size = path.stat().st_size
            time.sleep(7)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0, log.read_text()
        assert "lost" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_recorded_events_are_the_blocks_that_the_engine_computed(shelf: Shelf, tmp_path: Path) -> None:
    model = shelf.model("llama")
    endpoint, path = f"ipc://{tmp_path}/events", tmp_path / "trace.jsonl"
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    settings = EngineSettings(model, blocks=BLOCKS, engine_args={"kv_events_config": config})
    first, *others = prompts_of(seed=41, number=3, tokens=1100)
    # The device keeps two of them: of the first one the end is gone when it comes again, and then is there.
    asked = [first, *others, first, first, [*first, *random_tokens(41_999, 300)], others[0]]
    engine = shelf.engine(settings, "events").start()
    try:
        with _recording(endpoint, path):
            outputs = engine.generate(asked)
    finally:
        engine.stop()

    span = model.tokens_per_block
    cached = [output.cached_tokens // span for output in outputs]
    assert cached[3] < cached[4] == len(first) // span, "the device evicted nothing, or kept nothing"
    computed = [len(prompt) // span - hits for prompt, hits in zip(asked, cached, strict=True)]
    unique = 3 * (1100 // span) + (1400 // span - 1100 // span)
    trace = open_trace(path)
    found = list(trace)
    assert trace.block_tokens == span
    assert sum(len(request.keys) for request in found) == sum(computed)
    assert len({key for request in found for key in request.keys}) == unique

    done = subprocess.run(
        [*KVOFFLOAD, "simulate", str(path), "--tiers", "host=64GiB", "--bytes-per-token", "1024", "--json"],
        capture_output=True,
        check=True,
        timeout=DEADLINE_S,
    )
    (run,) = json.loads(done.stdout)["runs"]
    assert run["block_accesses"] == sum(computed)
    assert round(run["hit_ratio"] * run["input_tokens"]) == (sum(computed) - unique) * span > 0
