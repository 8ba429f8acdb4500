"""Messages over real sockets: in order, with what is lost noticed, fetched again or said."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("zmq")

from publishing import Publisher

from kvoffload.connectors.events.sequence import Restart, Sequence
from kvoffload.connectors.events.subscription import Delivery, Source, Subscription
from kvoffload.errors import ConfigError


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher()
    yield publisher
    publisher.close()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def subscribed(publisher: Publisher, told: list[str]) -> Iterator[Subscription]:
    subscription = Subscription(Source(publisher.endpoint, replay=publisher.replay_endpoint), told.append)
    publisher.wait_for_subscriber()
    yield subscription
    subscription.close()


def received(subscription: Subscription, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    end = time.monotonic() + 20
    while len(found) < count and time.monotonic() < end:
        found += subscription.receive(100)
    assert len(found) == count
    return found


def test_messages_come_in_order(publisher: Publisher, subscribed: Subscription, told: list[str]) -> None:
    for number in range(50):
        publisher.send(b"%d" % number)
    found = received(subscribed, 50)
    assert found == [Delivery(b"%d" % number, follows_gap=False) for number in range(50)]
    assert (subscribed.lost, subscribed.malformed, subscribed.was_connected) == (0, 0, True)
    assert told == [f"connected with {publisher.endpoint}"]


def test_what_is_lost_is_fetched_again(publisher: Publisher, subscribed: Subscription) -> None:
    for number in range(6):
        publisher.send(b"%d" % number, lose=number in {2, 3})
    replay = publisher.serve_one_replay()
    assert [delivery.payload for delivery in received(subscribed, 6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    replay.join(10)
    assert subscribed.lost == 0


def test_what_is_gone_for_good_is_counted_said_once_and_marked(
    publisher: Publisher, subscribed: Subscription, told: list[str]
) -> None:
    for number in range(5):
        publisher.send(b"%d" % number, lose=number in {1, 2, 3}, keep=number != 2)
    publisher.serve_one_replay()
    assert [(found.payload, found.follows_gap) for found in received(subscribed, 4)] == [
        (b"0", False),
        (b"1", False),
        (b"3", True),
        (b"4", False),
    ]
    assert subscribed.lost == 1
    assert [text for text in told if "lost" in text] == [
        "1 messages are lost: their blocks are missing in the trace (all are counted at the end)"
    ]


def test_without_a_replay_socket_all_of_a_gap_is_lost_however_large(publisher: Publisher) -> None:
    subscription = Subscription(Source(publisher.endpoint), lambda _: None)
    try:
        publisher.wait_for_subscriber()
        publisher.send(b"first")
        publisher.send_frames(b"", (2**63).to_bytes(8, "big"), b"second")
        assert received(subscription, 2)[1] == Delivery(b"second", follows_gap=True)
        assert subscription.lost == 2**63 - 1
    finally:
        subscription.close()


def test_an_engine_that_begins_anew_is_no_loss(
    publisher: Publisher, subscribed: Subscription, told: list[str]
) -> None:
    publisher.send(b"0")
    publisher.send(b"1")
    publisher.restart()
    publisher.send(b"0 again")
    publisher.send(b"1 again")
    found = received(subscribed, 4)
    assert [delivery.follows_gap for delivery in found] == [False, False, True, False]
    assert subscribed.lost == 0
    assert "the engine has begun anew" in told


def test_messages_of_another_kind_are_counted(publisher: Publisher, subscribed: Subscription) -> None:
    publisher.send_frames(b"hello")
    publisher.send_frames(b"", b"short", b"x")
    publisher.send(b"good")
    assert [delivery.payload for delivery in received(subscribed, 1)] == [b"good"]
    assert subscribed.malformed == 2


def test_an_engine_that_connects_is_listened_for(free_port: int) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port}"
    subscription = Subscription(Source(endpoint, is_ours=True), lambda _: None)
    publisher = Publisher(connect_to=endpoint)
    try:
        # The subscription goes out when we look for messages.
        end = time.monotonic() + 20
        while not publisher.has_subscriber(within_ms=50):
            assert subscription.receive(50) == []
            assert time.monotonic() < end
        publisher.send(b"hello")
        assert received(subscription, 1)[0].payload == b"hello"
    finally:
        publisher.close()
        subscription.close()


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_an_endpoint_that_is_taken_is_one_line(publisher: Publisher) -> None:
    with pytest.raises(ConfigError, match=r"--events .*: Address already in use"):
        Subscription(Source(publisher.endpoint, is_ours=True), lambda _: None)


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("tcp://*:5557", r"give a host, such as tcp://127\.0\.0\.1:5557"),
        ("localhost:5557", "is not an endpoint; give tcp://HOST:PORT"),
        ("tcp://localhost", "is not an endpoint"),
        ("http://localhost:1", "is not an endpoint"),
        ("", "is not an endpoint"),
    ],
)
def test_an_endpoint_that_is_none_is_refused_with_what_would_be_one(endpoint: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Source(endpoint)
    with pytest.raises(ConfigError, match=message):
        Source("tcp://localhost:1", replay=endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://[::1]:5557", "tcp://host.example:1", "ipc:///run/vllm/events"])
def test_what_zeromq_takes_is_taken(endpoint: str) -> None:
    assert Source(endpoint, replay=endpoint).endpoint == endpoint


def test_numbers_below_the_first_one_are_not_missing() -> None:
    sequence = Sequence()
    assert sequence.take(7) == range(0)
    assert sequence.take(8) == range(0)
    assert list(sequence.take(11)) == [9, 10]
    assert sequence.take(11) is Restart.RESTART
    assert sequence.take(0) is Restart.RESTART
    assert sequence.take(1) == range(0)
