"""`kvoffload record`: from a publisher's socket to a trace that is simulated; every refusal is one line and leaves no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("msgspec")
pytest.importorskip("zmq")

sys.path.append(str(Path(__file__).parent.parent / "connectors"))
from publishing import BLOCK_TOKENS, CLEARED, Publisher, ToyEngine, batch, chain_of, removed, stored

from kvoffload.cli import recording_run
from kvoffload.cli.main import app
from kvoffload.connectors.events.session import NothingRecordedError, RecordOptions, Session
from kvoffload.connectors.events.subscription import Source


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher()
    yield publisher
    publisher.close()


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def sending(publisher: Publisher, messages: list[bytes]) -> threading.Thread:
    def send() -> None:
        publisher.wait_for_subscriber()
        for message in messages:
            publisher.send(message)

    return publisher.start(send)


def test_what_is_recorded_until_a_signal_is_simulated(tmp_path: Path, publisher: Publisher) -> None:
    path = tmp_path / "trace.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvoffload.cli.main", "record", "--events", publisher.endpoint, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        assert _subscribed(publisher)
        engine = ToyEngine(device_blocks=6)
        for text in ("abcdefg", "tuvwxyz", "abcdefg", "abcdefghi"):
            for message in engine.run(chain_of(text)):
                publisher.send(message)
            engine.now_s += 10
        # Those that are over are in the file before the end; the last one is held back.
        assert _lines(path, 3) == 3 + 1
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert errors == f"kvoffload: connected with {publisher.endpoint}\n"
    computed = [len(blocks) for blocks in engine.asked]
    assert f"{sum(computed)} blocks of {BLOCK_TOKENS} tokens in 4 runs" in out

    result = run("simulate", str(path), "--tiers", "host=1GiB", "--json")
    (found,) = json.loads(result.stdout)["runs"]
    assert found["block_accesses"] == sum(computed)
    unique = len({block for blocks in engine.asked for block in blocks})
    assert round(found["hit_ratio"] * sum(computed)) == sum(computed) - unique > 0


def _subscribed(publisher: Publisher) -> bool:
    publisher.wait_for_subscriber()
    return True


def _lines(path: Path, wanted: int) -> int:
    end = time.monotonic() + 20
    while (found := len(path.read_bytes().splitlines())) <= wanted and time.monotonic() < end:
        time.sleep(0.02)
    return found


def test_a_full_file_ends_the_recording(tmp_path: Path, publisher: Publisher) -> None:
    path = tmp_path / "t.jsonl"
    sending(publisher, [batch(10.0 * number, CLEARED, stored([b"%d" % number])) for number in range(200)])
    result = run("record", str(path), "--events", publisher.endpoint, "--max-bytes", "2kB")
    assert result.exit_code == 0
    assert "full)" in result.stdout
    assert "emptied its cache" in result.stdout
    assert 0 < path.stat().st_size <= 2000


def test_what_is_left_out_is_said(tmp_path: Path, publisher: Publisher) -> None:
    window = {"kv_cache_spec_kind": "sliding_window", "group_idx": 0}
    events = [stored([b"w"], **window), stored([b"a", b"b"], group_idx=1), {"type": "Unknown"}]
    # A third record would not fit, and so ends it.
    full = [batch(10.0 * number, stored([b"%d" % number] * 9, group_idx=1)) for number in range(1, 40)]
    sending(publisher, [batch(1.0, *events), b"nonsense", *full])
    result = run("record", str(tmp_path / "t.jsonl"), "--events", publisher.endpoint, "--max-bytes", "500")
    assert result.exit_code == 0, result.output
    assert "left out: 1 blocks, group of 'sliding_window'" in result.stdout
    assert "recorded: group 1, the first one of full attention" in result.stdout
    assert "not understood: 1 messages, 1 events" in result.stdout


def refused(tmp_path: Path, *options: str) -> str:
    path = tmp_path / "t.jsonl"
    result = run("record", str(path), *options)
    assert result.exit_code == 2, result.output
    assert not path.exists()
    (line,) = [text for text in result.stderr.splitlines() if "connected with" not in text]
    assert line.startswith("kvoffload: error: ")
    return line


def test_nobody_there_is_one_line_with_what_to_do(tmp_path: Path) -> None:
    line = refused(tmp_path, "--events", "tcp://127.0.0.1:9", "--wait", "0.1s")
    assert "nobody publishes at tcp://127.0.0.1:9 within 0.1 s" in line
    assert "--kv-events-config" in line
    line = refused(tmp_path, "--listen", "--events", f"ipc://{tmp_path}/socket", "--wait", "0.1s")
    assert "no engine has connected" in line


def recorded_until(
    path: Path, publisher: Publisher, is_enough: Callable[[Session, list[str]], bool]
) -> tuple[str, list[str]]:
    """Record until that is so; the refusal at the end, and what was told before."""
    told: list[str] = []
    seen: list[Session] = []
    options = RecordOptions(Source(publisher.endpoint), path, 30.0, 10**6, wait_s=1.0)
    session = Session(options, lambda: any(is_enough(one, told) for one in seen), told.append, seen.append)
    with pytest.raises(NothingRecordedError) as refusal:
        session.run()
    assert not path.exists()
    return str(refusal.value), told


def test_silence_is_said_and_in_the_end_there_is_no_file(tmp_path: Path, publisher: Publisher) -> None:
    refusal, told = recorded_until(tmp_path / "t.jsonl", publisher, lambda _, told: len(told) > 1)
    assert "connected, but no event for 1 s" in told[1]
    assert "no blocks were stored while" in refusal


def test_that_only_another_kind_of_group_came_is_said(tmp_path: Path, publisher: Publisher) -> None:
    sending(publisher, [batch(1.0, stored([b"w"], kv_cache_spec_kind="mamba"))])
    refusal, _ = recorded_until(
        tmp_path / "t.jsonl", publisher, lambda session, _: bool(session.trace.selection.left_out)
    )
    assert "only blocks that do not belong into a trace came (1 blocks: group of 'mamba')" in refusal


def test_that_these_are_no_events_is_said(tmp_path: Path, publisher: Publisher) -> None:
    sending(publisher, [b"nonsense"])
    refusal, _ = recorded_until(tmp_path / "t.jsonl", publisher, lambda session, _: session.malformed > 0)
    assert "is not understood; are these vLLM's KV events?" in refusal


def test_what_follows_a_loss_is_not_joined_with_what_was_before(tmp_path: Path, publisher: Publisher) -> None:
    def send() -> None:
        publisher.wait_for_subscriber()
        publisher.send(batch(1.0, stored([b"a"])))
        publisher.send(batch(1.0, removed([b"x"])), lose=True)
        publisher.send(batch(1.0, stored([b"b"], b"a")))

    publisher.start(send)
    seen: list[Session] = []
    options = RecordOptions(Source(publisher.endpoint), tmp_path / "t.jsonl", 30.0, 10**6, wait_s=30.0)

    def is_written() -> bool:
        return any(session.lost and session.trace.counts.runs for session in seen)

    session = Session(options, is_written, lambda _: None, seen.append)
    session.run()
    assert (session.lost, session.trace.counts.runs, session.trace.counts.blocks) == (1, 2, 2)


def test_the_time_that_was_asked_for_ends_it(tmp_path: Path, publisher: Publisher) -> None:
    options = ("--events", publisher.endpoint, "--duration", "0.1s")
    assert "no blocks were stored" in refused(tmp_path, *options)


def test_options_that_are_wrong_are_one_line(tmp_path: Path) -> None:
    assert "'5557' is not an endpoint" in refused(tmp_path, "--events", "5557")
    assert "--duration: 'long' is not a duration" in refused(tmp_path, "--duration", "long")
    assert "--max-bytes: 'much' is not a size" in refused(tmp_path, "--max-bytes", "much")


def test_missing_libraries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_run, "find_spec", lambda name: None)
    assert "record needs pyzmq and msgspec" in refused(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_and_work_as_before_when_it_is_over(number: int) -> None:
    before = signal.getsignal(number)
    with recording_run._stopped_by_signals() as is_stopped:
        assert not is_stopped()
        os.kill(os.getpid(), number)
        assert is_stopped()
    assert signal.getsignal(number) is before
