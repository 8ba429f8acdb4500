"""Real processes: they share bytes, fail together, and leave nothing behind by any way to die."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

SOON_S = 10.0


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("kinds", [["memfd"], ["named_file"]], ids=lambda kinds: kinds[0])
def test_bytes_are_shared_both_ways_between_workers_and_an_attacher(start_child, kinds):
    workers = [start_child(rank, 2, memory_kinds=kinds) for rank in (1, 0)]
    attacher = start_child(None, 2)
    everybody = [*workers, attacher]
    for child in everybody:
        child.opened()
    for value, writer in enumerate(everybody, start=1):
        writer.ask("put", 4096 * value, value)
        for reader in everybody:
            assert reader.ask("get", 4096 * value)["value"] == value


@pytest.mark.parametrize("world_size", [1, 4])
def test_an_odd_budget_maps_at_most_one_row_less_and_once_per_engine(start_child, world_size):
    budget = 1_000_003
    workers = [start_child(rank, world_size, budget_bytes=budget) for rank in range(world_size)]
    inodes = set()
    for worker in workers:
        event = worker.opened()
        assert budget - 8192 < event["mapped_bytes"] == event["total_bytes"] <= budget
        maps = Path(f"/proc/{worker.pid}/maps").read_text().splitlines()
        [line] = [line for line in maps if "memfd:kvoffload" in line]
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        assert last - first == event["total_bytes"]
        inodes.add(line.split()[4])
    assert len(inodes) == 1


# -- case f ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [["memfd"], ["named_file"]], ids=lambda kinds: kinds[0])
def test_too_big_fails_all_four_ranks_at_once_with_needed_available_where_and_remedy(
    start_child, machine, kinds
):
    roots = machine(10**6)
    options = {
        "budget_bytes": 2**32,
        "limit_roots": [str(roots.proc), str(roots.cgroup)],
        "memory_kinds": kinds,
    }
    # Rank 0 ends as soon as it has raised; by then the ranks that wait know.
    children = [start_child(rank, 4, **options) for rank in (3, 1, 2, 0)]
    for child in children:
        error = child.error(SOON_S)
        assert error["kind"] == "RegionSizeError", error
        for word in (
            "needed 4.00 GiB",
            "available 976.00 KiB",
            "MemAvailable",
            "lower cpu_bytes_to_use to at most",
        ):
            assert word in error["message"]


@pytest.mark.parametrize("budget", [0, -5, 8191])
def test_zero_and_less_than_one_row_fail_every_rank_at_once(start_child, budget):
    for child in [start_child(rank, 2, budget_bytes=budget) for rank in (1, 0)]:
        error = child.error(SOON_S)
        assert error["kind"] == "RegionSizeError", error
        for word in ("needed", "available", "cpu_bytes_to_use", "at least 8192 bytes"):
            assert word in error["message"]


# -- ways to die -------------------------------------------------------------------------------------------


def test_ranks_that_are_missing_are_named(start_child):
    children = [start_child(rank, 4, timeout_s=1.0, hold=True) for rank in (0, 2)]
    for child in children:
        child.go()
    for child in children:
        error = child.error()
        assert error["kind"] == "RegionJoinError"
        assert "missing at the deadline: rank 1, rank 3" in error["message"]


@pytest.mark.parametrize("sabotage", ["die_before_mapping", "die_after_mapping"])
def test_a_joiner_that_is_killed_releases_the_others_at_once(start_child, sabotage):
    survivors = [start_child(rank, 3) for rank in (0, 1)]
    victim = start_child(2, 3, sabotage=sabotage)
    assert victim.process.wait(SOON_S) == -signal.SIGKILL
    for child in survivors:
        error = child.error(SOON_S)
        assert error["kind"] == "RegionJoinError"
        assert f"rank 2 (pid {victim.pid}) died or left" in error["message"]


def test_a_joiner_that_waits_in_the_barrier_and_is_killed_releases_the_others_at_once(start_child):
    creator, victim, other = (start_child(rank, 4) for rank in (0, 1, 2))
    victim.wait_until_mapped()
    victim.kill()
    for child in (creator, other):
        assert f"rank 1 (pid {victim.pid}) died" in child.error(SOON_S)["message"]


def test_a_joiner_that_cannot_map_releases_the_others_with_its_reason(start_child):
    children = [start_child(0, 3), start_child(1, 3), start_child(2, 3, sabotage="fail_mapping")]
    for child in children:
        assert "sabotage: no address space" in child.error(SOON_S)["message"]


def test_a_creator_that_is_killed_before_there_is_memory_releases_those_who_knock_at_once(start_child):
    joiners = [start_child(rank, 3) for rank in (1, 2)]
    creator = start_child(0, 3, sabotage="die_while_others_knock")
    assert creator.process.wait(SOON_S) == -signal.SIGKILL
    for joiner in joiners:
        error = joiner.error(SOON_S)
        assert error["kind"] == "RegionJoinError"
        assert f"rank 0 (pid {creator.pid}) died" in error["message"]


def test_a_creator_that_is_killed_in_the_barrier_releases_those_who_wait_at_once(start_child):
    joiner, creator = start_child(1, 3), start_child(0, 3)
    joiner.wait_until_mapped()
    creator.kill()
    error = joiner.error(SOON_S)
    assert error["kind"] == "RegionJoinError"
    assert f"rank 0 (pid {creator.pid}) died" in error["message"]


def test_a_creator_that_forked_a_child_and_is_killed_keeps_neither_the_name_nor_the_waiting(start_child):
    creator = start_child(0, 1)
    creator.opened()
    forked = creator.ask("fork")["pid"]
    creator.kill()
    try:
        assert exists(forked)
        again = start_child(0, 1)
        again.opened()
    finally:
        os.kill(forked, signal.SIGKILL)


@pytest.mark.parametrize("kinds", [["memfd"], ["named_file"]], ids=lambda kinds: kinds[0])
def test_killing_everybody_leaves_nothing_and_the_same_engine_starts_again(start_child, kinds):
    for _ in range(2):
        children = [start_child(rank, 2, memory_kinds=kinds) for rank in (0, 1)]
        children.append(start_child(None, 2))
        for child in children:
            child.opened()
        for child in children:
            child.kill()
    # The fixture compares /dev/shm and /proc/net/unix with what was there before.


def test_a_killed_attacher_disturbs_nobody_and_the_next_one_gets_the_bytes(start_child):
    workers = [start_child(rank, 2) for rank in (0, 1)]
    for worker in workers:
        worker.opened()
    workers[1].ask("put", 77, 7)
    for sabotage in ("die_before_mapping", "die_after_mapping"):
        victim = start_child(None, 2, sabotage=sabotage)
        assert victim.process.wait(SOON_S) == -signal.SIGKILL
    attacher = start_child(None, 2)
    attacher.opened()
    attacher.kill()
    attacher = start_child(None, 2)
    attacher.opened()
    assert attacher.ask("get", 77)["value"] == 7
    assert workers[0].ask("get", 77)["value"] == 7


def test_workers_that_die_after_the_barrier_take_no_memory_from_the_others(start_child):
    creator, joiner = (start_child(rank, 2) for rank in (0, 1))
    creator.opened()
    joiner.opened()
    creator.ask("put", 9, 9)
    creator.kill()
    assert joiner.ask("get", 9)["value"] == 9


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.1, 0.2])
def test_killing_all_ranks_at_any_moment_leaves_nothing(start_child, delay_s):
    children = [start_child(rank, 2, memory_kinds=["named_file"]) for rank in (0, 1)]
    time.sleep(delay_s)
    for child in children:
        child.kill()
