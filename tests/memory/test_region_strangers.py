"""Strangers and attachers: whoever else comes to rank 0's door, the workers do not notice."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import time

import pytest

from kvoffload.errors import RegionError, RegionJoinError
from kvoffload.memory import endpoint, rendezvous, shared_region, wire
from kvoffload.memory.deadline import Deadline
from kvoffload.memory.plan import plan_region
from kvoffload.memory.region_spec import RegionSpec
from kvoffload.memory.shared_region import SharedOffloadRegion
from kvoffload.memory.terms import attach_message, join_message

SOON_S = 10.0
OTHER_PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")
"""One that other users may start; that of a virtual environment often lies in a home directory."""


def knock(spec: RegionSpec) -> socket.socket:
    """A connection to rank 0, for whoever wants to misbehave."""
    connection = endpoint.connect(spec, Deadline(SOON_S))
    connection.settimeout(SOON_S)
    return connection


def as_user(uid: int, code: str) -> subprocess.Popen:
    return subprocess.Popen(
        [OTHER_PYTHON, "-c", code],
        user=uid,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env={},
    )


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or OTHER_PYTHON is None, reason="needs to start a Python process of another user"
)


# -- strangers ---------------------------------------------------------------------------------------------

NONSENSE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00" * 5000,
    b"[" * 20_000,
    b" " * 100_000,
    b'{"kvoffload": 2}',
    wire.encode(wire.Mapped()),
    wire.encode(wire.Failed("a stranger says so", is_size=False)),
    wire.encode(wire.Join(99, 3, 32768, "4x8192", 1.0)),
    wire.encode(wire.Join(0, 3, 32768, "4x8192", 1.0)),
]


def test_strangers_with_wrong_first_bytes_disturb_nobody(make_spec, ranks, monkeypatch):
    monkeypatch.setattr(rendezvous, "GREETING_S", 1000.0)
    spec = make_spec(3)
    ranks.open(spec, 0, 1)
    strangers = [knock(spec) for _ in NONSENSE]
    for stranger, packet in zip(strangers, NONSENSE, strict=True):
        stranger.send(packet)
    with knock(spec):
        pass
    for stranger in strangers:
        assert isinstance(wire.receive(stranger), wire.Failed)
        assert wire.receive(stranger) is None
    silent = [knock(spec) for _ in range(rendezvous._MAX_GUESTS + 6)]
    for crowded_out in silent[:5]:
        assert wire.receive(crowded_out) is None
    ranks.open(spec, 2)
    assert {ranks.region(rank).array.nbytes for rank in range(3)} == {32768}
    for stranger in strangers + silent:
        stranger.close()
    with SharedOffloadRegion.attach(spec, SOON_S) as attached:
        assert attached.array.nbytes == 32768


def test_a_silent_connection_is_dropped_after_a_while(make_spec, ranks, monkeypatch):
    monkeypatch.setattr(rendezvous, "GREETING_S", 0.1)
    spec = make_spec(2)
    ranks.open(spec, 0)
    with knock(spec) as silent:
        assert wire.receive(silent) is None
    ranks.open(spec, 1)
    assert ranks.region(1).array.nbytes == ranks.region(0).array.nbytes


@needs_root
def test_a_process_of_another_user_is_refused_and_disturbs_nobody(make_spec, ranks):
    spec = make_spec(2)
    ranks.open(spec, 0)
    knock(spec).close()
    code = (
        "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.connect('\\0{spec.socket_name}'); s.send({wire.encode(join_message(spec, 1, 9.0))!r}); print(s.recv(99))"
    )
    with as_user(65534, code) as stranger:
        output, _ = stranger.communicate(timeout=SOON_S)
    assert "Region" not in output
    ranks.open(spec, 1)
    assert ranks.region(1).array.nbytes == ranks.region(0).array.nbytes


@needs_root
def test_a_meeting_place_held_by_another_user_is_refused_by_name(make_spec):
    spec = make_spec(2)
    code = (
        "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.bind('\\0{spec.socket_name}'); s.listen(); print('ready', flush=True); input()"
    )
    with as_user(65534, code) as squatter:
        assert squatter.stdout.readline() == "ready\n"
        with pytest.raises(RegionJoinError, match="of user 65534, this process is of user 0"):
            SharedOffloadRegion.open(spec, 1)
        with pytest.raises(RegionJoinError, match=f"in use, pid {squatter.pid} of user 65534"):
            SharedOffloadRegion.open(spec, 0)
        squatter.communicate("\n", timeout=SOON_S)


# -- attaching ---------------------------------------------------------------------------------------------


def test_attachers_wait_for_the_barrier_and_come_and_go_after_it(make_spec, ranks):
    spec = make_spec(2)
    ranks.start("early", SharedOffloadRegion.attach, spec, 60.0)
    ranks.open(spec, 0)
    time.sleep(0.05)
    assert "early" not in ranks.results
    ranks.open(spec, 1)
    ranks.region(1).array[3] = 4
    assert ranks.region("early").array[3] == 4
    for _ in range(20):
        with SharedOffloadRegion.attach(spec, SOON_S) as region:
            assert region.array[3] == 4


def no_room(*_, **__):
    raise RegionError("no room")


def test_attachers_that_fail_disturb_neither_workers_nor_other_attachers(make_spec, monkeypatch):
    spec = make_spec()
    with SharedOffloadRegion.open(spec, 0) as region:
        region.array[0] = 8
        other = dataclasses.replace(spec, plan=plan_region(8192, [5000]))
        with pytest.raises(RegionJoinError, match="bytes in total: it has 8192, rank 0 has 32768"):
            SharedOffloadRegion.attach(other, SOON_S)
        for packet in NONSENSE:
            with knock(spec) as stranger:
                stranger.send(packet)
        hasty = knock(spec)
        wire.send(hasty, attach_message(spec))
        hasty.close()
        with pytest.raises(RegionJoinError, match="another engine with this engine_id"):
            SharedOffloadRegion.open(dataclasses.replace(spec, world_size=2), 1)
        monkeypatch.setattr(shared_region, "map_memory", no_room)
        with pytest.raises(RegionError, match="no room"):
            SharedOffloadRegion.attach(spec, SOON_S)
        monkeypatch.undo()
        with SharedOffloadRegion.attach(spec, SOON_S) as attached:
            assert attached.array[0] == 8


def test_after_close_nobody_attaches_and_those_who_did_keep_the_memory(make_spec):
    spec = make_spec()
    region = SharedOffloadRegion.open(spec, 0)
    attached = SharedOffloadRegion.attach(spec, SOON_S)
    region.close()
    with pytest.raises(RegionJoinError, match="rank 0 is missing"):
        SharedOffloadRegion.attach(spec, 0.05)
    attached.array[:] = 5
    assert attached.array.all()
    attached.close()
