"""Children that open regions, fake machines, and the proof that a test left nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from kvoffload.memory import rendezvous
from kvoffload.memory.limits import LimitRoots
from kvoffload.memory.plan import plan_region
from kvoffload.memory.region_spec import MemoryKind, RegionSpec, SocketKind
from kvoffload.memory.shared_region import SharedOffloadRegion

CHILD = Path(__file__).with_name("region_child.py")
PATIENCE_S = 30.0
SOON_S = 10.0
"""Generous; what fails within it did not wait for a deadline of 60 s."""
ROW_BYTES = 5000


class Child:
    """A process that opens or attaches a region and then obeys: see region_child.py."""

    def __init__(self, options: dict) -> None:
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(CHILD.parents[2] / "src")},
            bufsize=0,  # select() does not see what a buffer holds
        )
        self.seen: list[dict] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def event(self, timeout_s: float = PATIENCE_S) -> dict:
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        assert ready, f"child {self.pid} said nothing in {timeout_s} s after {self.seen}"
        line = self.process.stdout.readline()
        assert line, f"child {self.pid} ended with {self.process.wait()} after {self.seen}"
        self.seen.append(json.loads(line))
        return self.seen[-1]

    def opened(self) -> dict:
        event = self.event()
        assert event["event"] == "open", event
        return event

    def error(self, within_s: float = PATIENCE_S) -> dict:
        event = self.event(within_s)
        assert event["event"] == "error", event
        return event

    def ask(self, *words: object) -> dict:
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.process.stdin.flush()
        return self.event()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def wait_until_mapped(self) -> None:
        """Until the kernel says so; the child itself sits in the barrier and cannot."""
        wait_until(lambda: "memfd:kvoffload" in Path(f"/proc/{self.pid}/maps").read_text())

    def wait_until_running(self) -> None:
        event = self.event()
        assert event["event"] == "start", event

    def go(self) -> None:
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def wait_until(condition, timeout_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


class Ranks:
    """Workers of one engine as threads of this process: quick, and good enough where nobody has to die."""

    def __init__(self) -> None:
        self.results: dict[object, SharedOffloadRegion | BaseException] = {}
        self._threads: dict[object, threading.Thread] = {}

    def start(self, name: object, call, *args) -> None:
        def run() -> None:
            try:
                self.results[name] = call(*args)
            except BaseException as error:
                self.results[name] = error

        self._threads[name] = threading.Thread(target=run, daemon=True)
        self._threads[name].start()

    def open(self, spec: RegionSpec, *ranks: int) -> None:
        for rank in ranks:
            self.start(rank, SharedOffloadRegion.open, spec, rank)

    def region(self, name: object) -> SharedOffloadRegion:
        result = self._result(name)
        assert isinstance(result, SharedOffloadRegion), result
        return result

    def error(self, name: object) -> BaseException:
        result = self._result(name)
        assert isinstance(result, BaseException), result
        return result

    def _result(self, name: object) -> SharedOffloadRegion | BaseException:
        self._threads[name].join(PATIENCE_S)
        assert name in self.results, f"{name} still waits"
        return self.results[name]

    def close(self) -> None:
        for thread in self._threads.values():
            thread.join(PATIENCE_S)
        for result in self.results.values():
            if isinstance(result, SharedOffloadRegion):
                result.close()
        self.results.clear()


def traces(names: set[str]) -> set[str]:
    """What of these engines can be seen from outside: sockets of any process, files in /dev/shm."""
    sockets = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
    found = {name for name in sockets if any(mine in name for mine in names)}
    return found | {path.name for path in Path("/dev/shm").iterdir() if "kvoffload" in path.name}


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """After every test: no file in /dev/shm, no socket name, whatever way its processes died."""
    names: set[str] = set()
    request.node.socket_names = names
    before = traces(names)
    yield
    wait_until(lambda: traces(names) <= before, SOON_S)


@pytest.fixture(autouse=True)
def short_farewell(monkeypatch):
    """Ranks that a test never starts need no long time to hear why."""
    monkeypatch.setattr(rendezvous, "FAREWELL_S", 0.1)
    monkeypatch.setattr(rendezvous, "LINGER_S", 0.2)


@pytest.fixture
def long_farewell(short_farewell, monkeypatch):
    monkeypatch.setattr(rendezvous, "LINGER_S", 20.0)


@pytest.fixture
def make_spec(nothing_left_behind, request, tmp_path):
    """Specs of one engine that is unique to this test."""
    engine_id = f"engine {uuid.uuid4()}"

    def make(world_size: int = 1, timeout_s: float = 60.0, rows: int = 4, **changes) -> RegionSpec:
        changes = {"socket_dir": tmp_path, **changes}
        plan = changes.pop("plan", None) or plan_region(rows * 8192, [ROW_BYTES])
        spec = RegionSpec(changes.pop("engine_id", engine_id), plan, world_size, timeout_s, **changes)
        request.node.socket_names.add(spec.socket_name)
        return spec

    return make


@pytest.fixture
def ranks(nothing_left_behind):
    team = Ranks()
    yield team
    team.close()


@pytest.fixture
def start_child(nothing_left_behind, make_spec):
    """Start processes: start_child(rank=0, world_size=2, …); rank None attaches; `hold` until child.go()."""
    children = []

    def start(
        rank: int | None, world_size: int = 1, timeout_s: float = 60.0, hold: bool = False, **options
    ) -> Child:
        spec = make_spec(world_size, timeout_s)
        child = Child(
            {
                "engine_id": spec.engine_id,
                "rank": rank,
                "world_size": world_size,
                "timeout_s": timeout_s,
                "budget_bytes": spec.plan.total_bytes,
                "row_bytes": [ROW_BYTES],
                "socket_dir": str(spec.socket_dir),
                **options,
            }
        )
        children.append(child)
        child.wait_until_running()
        if not hold:
            child.go()
        return child

    yield start
    for child in children:
        child.close()


@pytest.fixture
def machine(tmp_path):
    """A fake machine: machine(available_bytes) → roots of its kernel file systems."""

    def make(available_bytes: int) -> LimitRoots:
        proc = tmp_path / "machine" / "proc"
        proc.mkdir(parents=True, exist_ok=True)
        (proc / "meminfo").write_text(
            f"MemTotal: 99999999999 kB\nMemAvailable: {available_bytes // 1024} kB\n"
        )
        return LimitRoots(proc, tmp_path / "machine" / "cgroup")

    return make


@pytest.fixture(params=list(MemoryKind), ids=lambda kind: kind.value)
def memory_kind(request) -> MemoryKind:
    return request.param


@pytest.fixture(params=list(SocketKind), ids=lambda kind: kind.value)
def socket_kind(request) -> SocketKind:
    return request.param
