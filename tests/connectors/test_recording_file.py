"""Recorded requests become a trace; whatever the disk does, the caller does not wait, and the file stays bounded."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvoffload.connectors import recording
from kvoffload.connectors.recording import RecordedRequest, TraceRecorder
from kvoffload.sim.traces.base import TraceRequest
from kvoffload.sim.traces.opening import open_trace

HASHES = [bytes([number]) * 32 for number in range(8)]


def request(*numbers: int, at_s: float = 5.0, salt: bytes = b"") -> RecordedRequest:
    return RecordedRequest(at_s, 16 * len(numbers) + 3, [HASHES[number] for number in numbers], salt)


def recorded(directory: Path, *requests: RecordedRequest, max_bytes: int = 10**6) -> list[TraceRequest]:
    known = set(directory.iterdir()) if directory.exists() else set()
    recorder = TraceRecorder(directory, 16, max_bytes)
    assert all(recorder.add(one) for one in requests)
    recorder.close()
    recorder.close()
    (path,) = set(directory.iterdir()) - known
    assert path.stat().st_size <= max_bytes
    return list(open_trace(path))


def test_what_begins_alike_begins_alike_in_the_trace(tmp_path: Path) -> None:
    one, two, other = recorded(
        tmp_path / "new" / "folder",
        request(1, 2),
        request(1, 2, 3, at_s=6.5),
        request(1, 2, at_s=7.0, salt=b"x"),
    )
    assert one.keys == two.keys[:2]
    assert not set(other.keys) & set(one.keys)
    assert (one.arrival_s, two.arrival_s, two.input_tokens) == (0.0, 1.5, 51)


def test_two_recordings_have_no_name_in_common(tmp_path: Path) -> None:
    (one,), (two,) = recorded(tmp_path, request(1, 2)), recorded(tmp_path, request(1, 2))
    assert not set(one.keys) & set(two.keys)
    assert not {key[:-4] for key in one.keys} & {name.hex().encode() for name in HASHES}


def test_a_full_file_ends_with_a_whole_line_and_says_no(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path, 16, max_bytes=250)
    refused = 0
    for _ in range(10_000):
        refused += not recorder.add(request(1, 2, 3))
    recorder.close()
    assert not recorder.add(request(1))
    assert refused
    (path,) = tmp_path.iterdir()
    assert 0 < path.stat().st_size <= 250
    assert list(open_trace(path))


def test_a_directory_that_cannot_be_made_costs_the_trace_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recorder = TraceRecorder(tmp_path / "file" / "below", 16, 10**6)
    recorder.close()
    assert not recorder.add(request(1))


def test_the_home_directory_is_where_the_shell_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    TraceRecorder(Path("~/traces"), 16, 10**6).close()
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_a_disk_that_hangs_makes_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = threading.Event()
    monkeypatch.setattr(recording, "trace_line", lambda _: moving.wait() and b"")
    monkeypatch.setattr(recording, "_CLOSE_TIMEOUT_S", 0.01)
    recorder = TraceRecorder(tmp_path, 16, 10**6)
    answers = [recorder.add(request(1)) for _ in range(recording._MAX_WAITING + 5)]
    assert answers == [True] * recording._MAX_WAITING + [False] * 5
    recorder.close()
    moving.set()
