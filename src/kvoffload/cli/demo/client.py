"""A small client of the engine's OpenAI-compatible API. Standard library only; every call has a deadline."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvoffload.errors import KvError

Message = Mapping[str, str]


class ApiError(KvError):
    """The engine did not answer, or not as its API says."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One streamed answer."""

    text: str
    ttft_s: float
    """From the moment the request was sent to the first piece of text."""
    total_s: float
    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int
    """Prompt tokens that came from a cache, whichever: the engine's own account of this request."""


class Client:
    """Talks to one engine on this machine. A connection per call: no state between calls.

    Args:
        port: Of the engine, on the loopback interface.
        timeout_s: How long a single read may take.
    """

    def __init__(self, port: int, timeout_s: float = 120.0) -> None:
        self._address = ("127.0.0.1", port)
        self._timeout_s = timeout_s

    def is_healthy(self) -> bool:
        """Whether the engine answers; never raises."""
        try:
            return self._call("GET", "/health", None).status == http.client.OK
        except ApiError:
            return False

    def version(self) -> str:
        """Version of the engine."""
        return str(json.loads(self._read("GET", "/version", None))["version"])

    def metrics_text(self) -> str:
        """The engine's metrics in the text format of Prometheus."""
        return self._read("GET", "/metrics", None).decode()

    def count_tokens(self, model: str, messages: Sequence[Message]) -> int:
        """Tokens of a conversation after the chat template, as the engine counts them."""
        body = {"model": model, "messages": messages, "add_generation_prompt": True}
        return int(json.loads(self._read("POST", "/tokenize", body))["count"])

    def chat(self, model: str, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Send a conversation, greedy, and read the streamed answer.

        Raises:
            ApiError: refused, broken off, or silent for longer than the timeout.
        """
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.monotonic()
        response = self._open("POST", "/v1/chat/completions", body)
        try:
            return read_reply(stream_events(response), began)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiError(f"the engine broke off its answer: {error or type(error).__name__}") from error
        finally:
            response.close()

    def _read(self, method: str, path: str, body: object) -> bytes:
        response = self._open(method, path, body)
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(
                f"{method} {path}: the engine broke off: {error or type(error).__name__}"
            ) from error

    def _open(self, method: str, path: str, body: object) -> http.client.HTTPResponse:
        response = self._call(method, path, body)
        if response.status != http.client.OK:
            text = response.read(500).decode(errors="replace")
            raise ApiError(f"{method} {path}: the engine answered {response.status}: {text}")
        return response

    def _call(self, method: str, path: str, body: object) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(*self._address, timeout=self._timeout_s)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ApiError(
                f"{method} {path}: no answer from the engine: {error or type(error).__name__}"
            ) from error


def stream_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON events of a stream of server-sent events, up to its end mark.

    Raises:
        ValueError: the stream ends without the mark, or an event is no JSON object.
    """
    for line in lines:
        field, _, value = line.decode().strip().partition(":")
        if field != "data":
            continue
        if value.strip() == "[DONE]":
            return
        event = json.loads(value)
        if not isinstance(event, dict) or "error" in event:
            raise ValueError(f"unexpected event: {value.strip()[:300]}")
        yield event
    raise ValueError("the stream ended early")


def read_reply(events: Iterable[dict[str, Any]], began: float) -> Reply:
    """Put an answer together from its events. `began`: `time.monotonic()` when the request was sent."""
    first: float | None = None
    pieces: list[str] = []
    usage: dict[str, Any] | None = None
    for event in events:
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            piece = choice["delta"].get("content")
            if piece:
                first = first or time.monotonic()
                pieces.append(piece)
    if usage is None or first is None:
        raise ValueError("the answer has no text or no usage")
    return Reply(
        text="".join(pieces),
        ttft_s=first - began,
        total_s=time.monotonic() - began,
        prompt_tokens=usage["prompt_tokens"],
        answer_tokens=usage["completion_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )
