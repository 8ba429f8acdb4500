"""Engines that die without a chance to clean up leave nothing behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from engine_process import EngineError
from kinds import on
from shelf import Shelf, Subject
from tiny_models import prompts_of

PROMPTS = prompts_of(seed=12, number=2, tokens=700)
GONE_WITHIN_S = 60.0


def _leftovers() -> set[str]:
    """Whatever of ours has a name on this machine: shared memory, sockets, folders for sockets."""
    found = {f"/dev/shm/{entry}" for entry in os.listdir("/dev/shm") if "kvoffload" in entry}
    found |= {
        line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "kvoffload" in line
    }
    return found | {str(path) for path in Path("/tmp").glob("kvoffload*")}


def _mapped_regions(pids: set[int]) -> set[int]:
    """Which of these processes map a region of ours."""
    found = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        if "kvoffload" in maps:
            found.add(pid)
    return found


def _wait(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + GONE_WITHIN_S
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [
        process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def _kill_and_check(
    shelf: Shelf, subject: Subject, choose: Callable[[list[psutil.Process]], psutil.Process]
) -> None:
    subject.engine.generate(PROMPTS)
    processes = subject.engine.processes()
    pids = {process.pid for process in processes}
    assert len(_mapped_regions(pids)) >= subject.tp, "no process maps the region: nothing is tested"
    # A request that is never finished.
    subject.engine.submit(prompts_of(seed=13, number=1, tokens=1000), max_tokens=1000)
    if subject.engine.settings.mode == "step":
        subject.engine.step(3)

    victim = choose(processes)
    os.kill(victim.pid, signal.SIGKILL)
    _wait(lambda: not _alive([victim]), "the victim lives")
    with pytest.raises(EngineError):
        # It must not pretend to serve, nor keep anybody waiting.
        subject.engine.collect(deadline_s=GONE_WITHIN_S)
    others = [process for process in processes if process != victim and process.pid != subject.engine.pid]
    workers = [process for process in others if _is_worker(process)]
    _wait(lambda: not _alive(workers), f"workers live on: {workers}")
    subject.engine.kill()
    _wait(lambda: not _alive(processes), f"processes live on: {_alive(processes)}")
    _wait(lambda: not _leftovers(), f"left behind: {_leftovers()}")
    shelf.drop()


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "Worker" in process.name()
    except psutil.NoSuchProcess:
        return False


def _named(text: str) -> Callable[[list[psutil.Process]], psutil.Process]:
    return lambda processes: next(process for process in processes if text in process.name())


@on("tp2")
def test_a_killed_engine_leaves_nothing_behind(shelf: Shelf, subject: Subject) -> None:
    _kill_and_check(shelf, subject, lambda processes: processes[0])


@on("serve")
def test_a_killed_engine_core_of_a_server_leaves_nothing_behind(shelf: Shelf, subject: Subject) -> None:
    _kill_and_check(shelf, subject, _named("EngineCore"))


@on("tp2")
def test_a_killed_worker_ends_the_engine_and_leaves_nothing_behind(shelf: Shelf, subject: Subject) -> None:
    _kill_and_check(shelf, subject, _named("Worker_TP1"))


@on("tp1")
def test_an_engine_that_is_stopped_and_not_killed_leaves_no_shared_memory(
    shelf: Shelf, subject: Subject
) -> None:
    subject.engine.generate(PROMPTS)
    subject.engine.processes()
    assert subject.engine.shared_files_left, "the engine shares no memory at all: nothing is tested"
    shelf.drop()
    assert not subject.engine.shared_files_left
    assert not _leftovers()
