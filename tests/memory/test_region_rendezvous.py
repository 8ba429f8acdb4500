"""The rendezvous, with threads as workers: who is admitted, who is refused, who is told what, and that nobody waits on."""

from __future__ import annotations

import dataclasses
import os
import socket
import time

import pytest

from kvoffload.errors import RegionError, RegionJoinError, RegionSizeError
from kvoffload.memory import endpoint, shared_region, wire
from kvoffload.memory.deadline import Deadline
from kvoffload.memory.plan import plan_region
from kvoffload.memory.region_spec import RegionSpec, SocketKind
from kvoffload.memory.shared_region import SharedOffloadRegion
from kvoffload.memory.terms import join_message

SOON_S = 10.0


def knock_and_join(spec: RegionSpec, rank: int) -> tuple[socket.socket, int]:
    connection = endpoint.connect(spec, Deadline(SOON_S))
    connection.settimeout(SOON_S)
    wire.send(connection, join_message(spec, rank, 60.0))
    message, descriptor = wire.receive_with_descriptor(connection)
    assert isinstance(message, wire.Region)
    return connection, descriptor


@pytest.mark.parametrize("world_size", [2, 4, 7])
def test_all_return_when_all_have_mapped_and_share_bytes(make_spec, ranks, world_size, socket_kind):
    spec = make_spec(world_size, rows=world_size, socket_kinds=(socket_kind,))
    ranks.open(spec, *range(1, world_size))
    time.sleep(0.05)
    assert not ranks.results
    ranks.open(spec, 0)
    for rank in range(world_size):
        ranks.region(rank).rows(0)[rank] = rank + 1
    for rank in range(world_size):
        assert (ranks.region(rank).rows(0)[:, 0] == list(range(1, world_size + 1))).all()


def test_every_kind_of_memory_is_shared(make_spec, ranks, memory_kind):
    ranks.open(make_spec(2, memory_kinds=(memory_kind,)), 0, 1)
    ranks.region(0).array[5] = 1
    ranks.region(1).array[6] = 2
    assert (ranks.region(0).array[5:7] == (1, 2)).all()
    assert (ranks.region(1).array[5:7] == (1, 2)).all()


def test_rank_0_and_joiners_may_use_different_kinds_of_sockets_in_turn(make_spec, ranks, monkeypatch):
    """Where abstract names do not exist, rank 0 falls back and the others find it."""
    real_bind = endpoint._bind

    def bind(connection, kind, spec, deadline):
        if kind is SocketKind.ABSTRACT:
            raise OSError(22, "Invalid argument")
        return real_bind(connection, kind, spec, deadline)

    monkeypatch.setattr(endpoint, "_bind", bind)
    spec = make_spec(2)
    ranks.open(spec, 0, 1)
    assert ranks.region(1).array.nbytes == ranks.region(0).array.nbytes
    assert list(spec.socket_dir.glob("*/*.sock"))


# -- failing together --------------------------------------------------------------------------------------


def test_missing_ranks_are_named_to_all_at_the_deadline(make_spec, ranks):
    spec = make_spec(5, timeout_s=1.0)
    ranks.open(spec, 0, 1, 3)
    for rank in (0, 1, 3):
        error = ranks.error(rank)
        assert isinstance(error, RegionJoinError)
        assert "missing at the deadline: rank 2, rank 4" in str(error)
        assert spec.engine_id in str(error)


def test_the_first_to_lose_patience_ends_the_barrier_and_still_hears_who_is_missing(make_spec, ranks):
    spec = make_spec(3, timeout_s=60)
    ranks.open(spec, 0)
    endpoint.connect(spec, Deadline(SOON_S)).close()
    ranks.open(dataclasses.replace(spec, timeout_s=0.3), 1)
    assert "missing at the deadline: rank 2" in str(ranks.error(1))
    assert "missing at the deadline: rank 2" in str(ranks.error(0))


def test_a_missing_rank_0_is_named_at_the_deadline(make_spec, ranks):
    spec = make_spec(2, timeout_s=0.2)
    ranks.open(spec, 1)
    ranks.start("attacher", SharedOffloadRegion.attach, spec, 0.2)
    for name in (1, "attacher"):
        error = ranks.error(name)
        assert isinstance(error, RegionJoinError)
        assert "rank 0 is missing" in str(error)


def test_a_size_that_does_not_fit_fails_waiting_present_and_late_ranks_at_once(
    make_spec, ranks, machine, long_farewell
):
    spec = make_spec(4, limit_roots=machine(4096))
    ranks.open(spec, 1)
    ranks.start("attacher", SharedOffloadRegion.attach, spec, 60.0)
    time.sleep(0.05)
    ranks.open(spec, 0, 2)
    errors = [ranks.error(name) for name in (0, 1, 2, "attacher")]
    ranks.open(spec, 3)
    errors.append(ranks.error(3))
    for error in errors:
        assert isinstance(error, RegionSizeError)
        for word in ("needed", "32768", "available", "4096", "MemAvailable", "lower cpu_bytes_to_use"):
            assert word in str(error)


def test_after_a_failure_that_all_know_the_engine_can_try_again(make_spec, ranks, machine):
    spec = make_spec(2, limit_roots=machine(4096))
    ranks.open(spec, 0, 1)
    for rank in (0, 1):
        assert isinstance(ranks.error(rank), RegionSizeError)
    machine(1_000_000)
    ranks.open(spec, 0, 1)
    ranks._threads[0].join(SOON_S)
    assert ranks.region(0).array.nbytes == ranks.region(1).array.nbytes


@pytest.mark.parametrize("kind", [RegionError, MemoryError, OSError, KeyboardInterrupt])
def test_a_joiner_that_cannot_map_releases_the_others_with_its_reason(
    make_spec, ranks, monkeypatch, kind, long_farewell
):
    real = shared_region.map_memory

    def map_memory(descriptor, spec):
        if spec.timeout_s == 61:
            raise kind("no address space")
        return real(descriptor, spec)

    monkeypatch.setattr(shared_region, "map_memory", map_memory)
    spec = make_spec(4, timeout_s=60)
    ranks.open(spec, 0, 1)
    ranks.open(dataclasses.replace(spec, timeout_s=61), 2)
    assert isinstance(ranks.error(2), RegionError if kind is OSError else kind)
    for rank in (0, 1):
        error = ranks.error(rank)
        assert isinstance(error, RegionJoinError)
        assert "rank 2" in str(error)
        assert "no address space" in str(error)
    ranks.open(spec, 3)
    assert "no address space" in str(ranks.error(3))


@pytest.mark.parametrize("kind", [RegionError, MemoryError, OSError])
def test_a_rank_0_that_cannot_make_the_memory_releases_the_others_with_its_reason(
    make_spec, ranks, monkeypatch, kind
):
    def make_memory(_):
        raise kind("no pages")

    monkeypatch.setattr(shared_region, "make_memory", make_memory)
    ranks.open(make_spec(3), 0, 1, 2)
    assert isinstance(ranks.error(0), RegionError if kind is OSError else kind)
    for rank in (1, 2):
        assert isinstance(ranks.error(rank), RegionJoinError)
        assert "no pages" in str(ranks.error(rank))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"world_size": 4}, "world size: it has 4, rank 0 has 3"),
        ({"plan": plan_region(3 * 8192, [5000])}, "bytes in total: it has 24576, rank 0 has 32768"),
        ({"plan": plan_region(4 * 8192, [16384])}, "it has 2x16384, rank 0 has 4x8192"),
    ],
)
def test_a_worker_with_another_configuration_fails_all_with_the_difference(make_spec, ranks, change, text):
    spec = make_spec(3)
    ranks.open(spec, 0, 1)
    ranks.open(dataclasses.replace(spec, **change), 2)
    for rank in (0, 1, 2):
        error = ranks.error(rank)
        assert isinstance(error, RegionJoinError)
        assert "rank 2" in str(error)
        assert text in str(error)


def test_a_rank_is_accepted_once_and_the_second_one_disturbs_nobody(make_spec, ranks):
    spec = make_spec(3)
    first, descriptor = knock_after(ranks, spec, 1)
    ranks.open(spec, 1)
    assert "there is a rank 1 already" in str(ranks.error(1))
    wire.send(first, wire.Mapped())
    ranks.open(spec, 2)
    assert ranks.region(0).array.nbytes == ranks.region(2).array.nbytes
    assert wire.receive(first) == wire.Complete()
    os.close(descriptor)
    first.close()


def knock_after(ranks, spec, rank):
    ranks.open(spec, 0)
    return knock_and_join(spec, rank)


def test_a_refused_double_explains_the_missing_rank(make_spec, ranks):
    spec = make_spec(3, timeout_s=2.0)
    connection, descriptor = knock_after(ranks, spec, 1)
    with pytest.raises(RegionJoinError, match="rank 1 already"):
        SharedOffloadRegion.open(spec, 1)
    message = str(ranks.error(0))
    assert "missing at the deadline: rank 2" in message
    assert "not done mapping at the deadline: rank 1" in message
    assert f"refused meanwhile: rank 1 (pid {os.getpid()}): there is a rank 1 already" in message
    os.close(descriptor)
    connection.close()


def test_a_worker_that_hangs_up_before_the_end_releases_the_others(make_spec, ranks):
    spec = make_spec(4)
    connection, descriptor = knock_after(ranks, spec, 1)
    ranks.open(spec, 2)
    wire.send(connection, wire.Mapped())
    os.close(descriptor)
    connection.close()
    for rank in (0, 2):
        assert "rank 1" in str(ranks.error(rank))
        assert "died or left" in str(ranks.error(rank))


def test_a_worker_that_talks_out_of_turn_releases_the_others(make_spec, ranks):
    spec = make_spec(3)
    connection, descriptor = knock_after(ranks, spec, 1)
    wire.send(connection, wire.Complete())
    assert "rank 1" in str(ranks.error(0))
    assert "Complete out of turn" in str(ranks.error(0))
    os.close(descriptor)
    connection.close()


def test_a_joiner_refuses_a_rank_0_that_talks_nonsense(make_spec, ranks):
    spec = make_spec(2)
    for answer in (wire.encode(wire.Complete()), b"\x00\x01", wire.encode(wire.Region(32768))):
        listener = endpoint.listen(spec, Deadline(1))
        listener.connection.settimeout(SOON_S)
        ranks.start("joiner", SharedOffloadRegion.open, spec, 1)
        connection, _ = listener.connection.accept()
        connection.send(answer)
        assert isinstance(ranks.error("joiner"), RegionJoinError)
        ranks.close()
        connection.close()
        listener.close()
