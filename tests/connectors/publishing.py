"""What stands for vLLM in the tests of recording events: its wire format, its publisher's sockets, and a cache that tells."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

BLOCK_TOKENS = 16
TOKEN = 7_777_777
"""Whatever is recorded may not contain it."""


def stored(
    hashes: Sequence[bytes | int], parent: bytes | int | None = None, as_array: bool = False, **more: Any
) -> Any:
    """BlockStored in the form of vLLM 0.32, or in that of earlier ones."""
    fields = {
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": [TOKEN] * (BLOCK_TOKENS * len(hashes)),
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["tenant"]] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **more,
    }
    return ["BlockStored", *fields.values()] if as_array else {"type": "BlockStored", **fields}


def removed(hashes: Sequence[bytes]) -> Any:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


CLEARED = {"type": "AllBlocksCleared"}


def batch(at_s: float, *events: Any) -> bytes:
    return msgspec.msgpack.encode([at_s, list(events), 0])


class Publisher:
    """The sockets of vLLM's publisher on loopback: PUB, and ROUTER for what was missed."""

    def __init__(self, connect_to: str | None = None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        if connect_to is None:
            self._socket.bind("tcp://127.0.0.1:*")
        else:
            self._socket.connect(connect_to)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind("tcp://127.0.0.1:*")
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._kept: list[tuple[int, bytes]] = []
        self._number = 0
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> threading.Thread:
        """Let a thread use the sockets; nobody else may until it has ended."""
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def has_subscriber(self, within_ms: int) -> bool:
        """Whether one has come, to all topics; true once for each."""
        return bool(self._socket.poll(within_ms)) and self._socket.recv() == b"\x01"

    def wait_for_subscriber(self) -> None:
        assert self.has_subscriber(10_000)

    def send(self, payload: bytes, *, lose: bool = False, keep: bool = True) -> None:
        if not lose:
            self.send_frames(b"", self._number.to_bytes(8, "big"), payload)
        if keep:
            self._kept.append((self._number, payload))
        self._number += 1

    def send_frames(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def restart(self) -> None:
        self._number = 0

    def serve_one_replay(self) -> threading.Thread:
        return self.start(self._serve)

    def _serve(self) -> None:
        assert self._router.poll(10_000)
        client, _, start = self._router.recv_multipart()
        for number, payload in self._kept:
            if number >= int.from_bytes(start, "big"):
                self._router.send_multipart((client, b"", b"", number.to_bytes(8, "big"), payload))
        self._router.send_multipart((client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))

    def close(self) -> None:
        # A socket that is closed while another thread uses it ends the whole process.
        for thread in self._threads:
            thread.join()
        self._context.destroy(linger=0)


@dataclass
class ToyEngine:
    """A device cache (LRU, last blocks of a prompt first) that tells what it stores, as vLLM does: step by step."""

    device_blocks: int
    step_blocks: int = 3
    now_s: float = 1_000.0
    kept: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    asked: list[list[bytes]] = field(default_factory=list)
    """What each request computed: what a tier below would be asked for."""

    def run(self, chain: Sequence[bytes]) -> Iterator[bytes]:
        """One request; its messages."""
        hits = 0
        while hits < len(chain) and chain[hits] in self.kept:
            hits += 1
        self.asked.append(list(chain[hits:]))
        for start in range(hits, len(chain), self.step_blocks):
            new = chain[start : start + self.step_blocks]
            self.now_s += 0.2
            yield batch(self.now_s, stored(new, chain[start - 1] if start else None))
        for block in reversed(chain):
            self.kept[block] = None
            self.kept.move_to_end(block)
        if gone := [self.kept.popitem(last=False)[0] for _ in range(len(self.kept) - self.device_blocks)]:
            yield batch(self.now_s, removed(gone))


def chain_of(text: str) -> list[bytes]:
    """Blocks of a prompt, one a character; equal beginnings have equal blocks."""
    return [b"hash of " + text[: length + 1].encode() for length in range(len(text))]
