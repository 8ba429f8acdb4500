"""The demo's API client against a real server on the loopback interface that plays the engine."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from kvoffload.cli.demo.client import ApiError, Client, stream_events

MESSAGES = ({"role": "user", "content": "Hello"},)


class FakeEngine(BaseHTTPRequestHandler):
    events: ClassVar[list[object]] = []
    status = 200
    pause_s = 0.0
    end_mark = True
    seen: ClassVar[dict[str, object]] = {}

    def do_GET(self):
        self._answer(b'{"version": "0.32.0"}')

    def do_POST(self):
        FakeEngine.seen = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._answer(b'{"count": 42}')
            return
        lines = [f"data: {json.dumps(event)}\n\n" for event in self.events]
        lines += ["data: [DONE]\n\n"] if self.end_mark else []
        self.send_response(self.status)
        self.end_headers()
        for line in lines:
            time.sleep(self.pause_s)
            self.wfile.write(line.encode())
            self.wfile.flush()

    def _answer(self, body):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def engine(monkeypatch):
    """(handler class to configure, client)."""
    monkeypatch.setattr(FakeEngine, "events", FakeEngine.events)
    for name in ("status", "pause_s", "end_mark"):
        monkeypatch.setattr(FakeEngine, name, getattr(FakeEngine, name))
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeEngine) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield FakeEngine, Client(server.server_port, timeout_s=2.0)
        server.shutdown()
        thread.join()


def delta(text):
    return {"choices": [{"delta": {"content": text}}]}


def usage(**details):
    counts = {"prompt_tokens": 2000, "completion_tokens": 3, "prompt_tokens_details": details or None}
    return {"choices": [], "usage": counts}


def test_an_answer_is_put_together_and_its_usage_read(engine):
    fake, client = engine
    fake.events = [delta(""), delta("two "), delta("words"), usage(cached_tokens=1920)]
    reply = client.chat("m", MESSAGES, 24)
    assert (reply.text, reply.prompt_tokens, reply.answer_tokens) == ("two words", 2000, 3)
    assert reply.cached_tokens == 1920


def test_requests_are_greedy_and_ask_for_usage(engine):
    fake, client = engine
    fake.events = [delta("x"), usage()]
    client.chat("m", MESSAGES, 24)
    assert fake.seen["temperature"] == 0
    assert fake.seen["max_tokens"] == 24
    assert fake.seen["stream_options"] == {"include_usage": True}
    assert fake.seen["messages"] == list(MESSAGES)


def test_the_first_token_is_the_first_piece_of_text_and_not_the_first_event(engine):
    fake, client = engine
    fake.pause_s = 0.1
    fake.events = [delta(""), delta("first"), delta("second"), usage()]
    reply = client.chat("m", MESSAGES, 24)
    assert 0.2 <= reply.ttft_s <= reply.total_s - 0.2


def test_no_cached_tokens_are_zero_and_not_an_error(engine):
    fake, client = engine
    fake.events = [delta("x"), usage()]
    assert client.chat("m", MESSAGES, 24).cached_tokens == 0


def test_tokens_are_counted_with_the_prompt_of_the_answer(engine):
    fake, client = engine
    assert client.count_tokens("m", MESSAGES) == 42
    assert fake.seen["add_generation_prompt"] is True


def test_health_and_version_are_read(engine):
    _, client = engine
    assert client.is_healthy()
    assert client.version() == "0.32.0"


def test_a_refusal_is_an_error_that_quotes_it(engine):
    fake, client = engine
    fake.status = 400
    with pytest.raises(ApiError, match="400"):
        client.chat("m", MESSAGES, 24)
    assert not client.is_healthy()


def test_a_stream_that_breaks_off_is_an_error(engine):
    fake, client = engine
    fake.events, fake.end_mark = [delta("half an ans")], False
    with pytest.raises(ApiError, match="ended early"):
        client.chat("m", MESSAGES, 24)


def test_an_error_in_the_stream_is_an_error(engine):
    fake, client = engine
    fake.events = [{"error": {"message": "the engine died"}}]
    with pytest.raises(ApiError, match="the engine died"):
        client.chat("m", MESSAGES, 24)


def test_an_answer_without_text_is_an_error(engine):
    fake, client = engine
    fake.events = [usage()]
    with pytest.raises(ApiError, match="no text"):
        client.chat("m", MESSAGES, 24)


def test_a_silent_engine_is_an_error_within_the_timeout(engine):
    fake, client = engine
    fake.pause_s, fake.events = 1.0, [delta("x"), usage()]
    impatient = Client(client._address[1], timeout_s=0.2)
    began = time.monotonic()
    with pytest.raises(ApiError, match="timed out"):
        impatient.chat("m", MESSAGES, 24)
    assert time.monotonic() - began < 30


def test_nobody_at_the_port_is_not_healthy_and_an_error():
    client = Client(1, timeout_s=1.0)
    assert not client.is_healthy()
    with pytest.raises(ApiError, match="no answer"):
        client.metrics_text()


def test_comments_and_blank_lines_between_events_are_skipped():
    lines = [b": keep-alive\n", b"\n", b'data: {"a": 1}\n', b"event: x\n", b"data:[DONE]\n", b"data: {}\n"]
    assert list(stream_events(lines)) == [{"a": 1}]
