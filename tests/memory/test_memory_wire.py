"""Messages: what is sent arrives as it was; anything else is refused, however large, deep or odd."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload.memory import wire
from kvoffload.memory.wire import Attach, Complete, Failed, Join, Mapped, Region, WireError, decode, encode

numbers = st.integers(0, 2**63 - 1)
texts = st.text(max_size=wire.MAX_TEXT_CHARACTERS)
messages = st.one_of(
    st.builds(Join, numbers, numbers, numbers, texts, st.floats(0, 2**40)),
    st.builds(Attach, numbers, numbers, texts),
    st.builds(Region, numbers),
    st.just(Mapped()),
    st.just(Complete()),
    st.builds(Failed, texts, st.booleans()),
)


@given(messages)
def test_messages_survive_the_wire(message):
    packet = encode(message)
    assert len(packet) <= wire.MAX_PACKET_BYTES
    assert decode(packet) == message


def test_the_longest_text_of_the_widest_characters_is_cut_and_fits():
    message = decode(encode(Failed("\U0001f40d" * 10_000, is_size=True)))
    assert message == Failed("\U0001f40d" * wire.MAX_TEXT_CHARACTERS, is_size=True)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(packet):
    with pytest.raises(WireError):
        decode(packet)


def changed(**values: object) -> bytes:
    return json.dumps({**json.loads(encode(Join(1, 2, 3, "f", 4.0))), **values}).encode()


@pytest.mark.parametrize(
    "packet",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 30_000,
        b"{}",
        b"[]",
        b"null",
        b'{"kvoffload": 1}',
        b"\xff\xfe",
        b"9" * 10_000,
        changed(kind="Exec"),
        changed(kind=["Join"]),
        changed(extra=1),
        changed(rank=True),
        changed(rank=-1),
        changed(rank=1.0),
        changed(rank="1"),
        changed(rank=2**63),
        changed(remaining_s=float("nan")),
        changed(remaining_s=float("inf")),
        changed(fingerprint=None),
        changed(fingerprint="x" * 2001),
    ],
)
def test_hostile_packets_are_refused(packet):
    with pytest.raises(WireError):
        decode(packet)


def test_another_version_is_refused_by_name():
    with pytest.raises(WireError, match="version 2, this process speaks 1"):
        decode(changed(kvoffload=2))


@pytest.fixture
def pair():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_descriptor_arrives_open_and_is_not_inherited(pair):
    left, right = pair
    with Path("/dev/null").open() as file:
        wire.send(left, Region(5), file.fileno())
    message, descriptor = wire.receive_with_descriptor(right)
    assert message == Region(5)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_descriptors_that_nobody_asked_for_are_closed(pair):
    left, right = pair
    before = open_descriptors()
    with Path("/dev/null").open() as file:
        wire.send(left, Mapped(), file.fileno())
        wire.send(left, Mapped(), file.fileno())
        socket.send_fds(left, [encode(Region(5))], [file.fileno()] * 20)
    assert wire.receive(right) == Mapped()
    for _ in range(2):
        with pytest.raises(WireError):
            wire.receive_with_descriptor(right)
    assert open_descriptors() == before


def test_a_region_message_without_its_descriptor_is_refused(pair):
    left, right = pair
    wire.send(left, Region(5))
    with pytest.raises(WireError, match="0 descriptors or more with Region"):
        wire.receive_with_descriptor(right)


def test_a_packet_that_is_too_long_is_refused_and_the_end_is_none(pair):
    left, right = pair
    left.send(b" " * (wire.MAX_PACKET_BYTES + 1))
    with pytest.raises(WireError, match="more than"):
        wire.receive(right)
    left.close()
    assert wire.receive(right) is None
