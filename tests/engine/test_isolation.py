"""Isolation matrix: whoever differs in anything that KV depends on gets nothing of another one's, and all of its own.

vLLM's own requests and hashes, our connector's keys, and every tier. Needs vLLM installed; no engine is started here
(`test_identities` has one).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
from vllm import SamplingParams  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core import kv_cache_utils as engine  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

from kvoffload.clock import MonotonicClock, WallClock  # noqa: E402
from kvoffload.connectors.vllm.scheduler import ConnectorScheduler  # noqa: E402
from kvoffload.keys.file_mapper import FileMapper  # noqa: E402
from kvoffload.keys.fingerprint import namespace_of  # noqa: E402
from kvoffload.keys.offload_key import OffloadKey  # noqa: E402
from kvoffload.manager.step import ScheduledRequest, StepInput  # noqa: E402
from kvoffload.messages import JobOutcome, WorkerReport  # noqa: E402
from kvoffload.spec.cpu import CPUOffloadingSpec  # noqa: E402
from kvoffload.testing.configs import example_config  # noqa: E402
from kvoffload.testing.tier_driver import TierDriver  # noqa: E402
from kvoffload.tiers.base import Outcome, Tier  # noqa: E402
from kvoffload.tiers.fs.options import FsTierConfig  # noqa: E402
from kvoffload.tiers.fs.tier import FsTier  # noqa: E402
from kvoffload.tiers.memory import MemoryTier, MemoryTierConfig  # noqa: E402
from kvoffload.types import BlockId, LookupResult, RequestId  # noqa: E402

BLOCK, BLOCKS = 16, 4
TOKENS = BLOCK * BLOCKS
HIDDEN = 8
IMAGE = hashlib.sha256(b"image").hexdigest()
CONFIG = example_config()
PAYLOAD_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Who:
    """Whose prompt it is, and what of it stands in no token."""

    salt: str | None = None
    adapter: tuple[str, str] | None = None
    """Name, and the folder with its weights."""
    images: tuple[tuple[str, int], ...] = ()
    """What vLLM calls an image, and where in the prompt it begins."""
    embeds: float | None = None
    """Instead of tokens: vectors of zeros, and this number as the very first one."""
    is_mixed: str = ""
    """Tokens (t) and embeddings (e) of each block; tokens are 0 then, embeddings zeros."""
    shared_blocks: int = 0
    """So many blocks are the same as of the one with nothing of all this."""


MATRIX = {
    "nobody": Who(shared_blocks=BLOCKS),
    "salt": Who(salt="tenant"),
    "another salt": Who(salt="tenant2"),
    "adapter": Who(adapter=("summaries", "one")),
    "adapter from another place": Who(adapter=("summaries", "two")),
    "another adapter there": Who(adapter=("titles", "one")),
    "adapter named like a salt": Who(adapter=("tenant", "one")),
    "salt named like an adapter": Who(salt="summaries"),
    "salt and adapter": Who(salt="tenant", adapter=("summaries", "one")),
    "salt and adapter, names exchanged": Who(salt="summaries", adapter=("tenant", "one")),
    "image": Who(images=((IMAGE, 3),)),
    "image with another first digit": Who(images=(("0" + IMAGE[1:], 3),)),
    "image with another last digit": Who(images=((IMAGE[:-1] + "0", 3),)),
    "image with the same 16 first digits": Who(images=((IMAGE[:16] + "0" * 48, 3),)),
    "image with the same 16 last digits": Who(images=(("0" * 48 + IMAGE[-16:], 3),)),
    "image one token later": Who(images=((IMAGE, 4),)),
    "image named like a salt": Who(images=(("tenant", 0),)),
    "image of an adapter": Who(images=((IMAGE, 3),), adapter=("summaries", "one")),
    "image in the third block": Who(images=((IMAGE, 2 * BLOCK + 3),), shared_blocks=2),
    "two images": Who(images=((IMAGE, 0), (IMAGE[::-1], 8))),
    "two images, exchanged": Who(images=((IMAGE[::-1], 0), (IMAGE, 8))),
    "embeddings": Who(embeds=0.5),
    "embeddings with one other number": Who(embeds=0.25),
    "embeddings of a tenant": Who(embeds=0.5, salt="tenant"),
    "embeddings of zeros": Who(embeds=0.0),
    "tokens and embeddings": Who(is_mixed="teet"),
    "tokens and embeddings elsewhere": Who(is_mixed="ttee"),
}
ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")


@pytest.fixture(params=ALGORITHMS)
def hash_function(request: pytest.FixtureRequest) -> Any:
    """One of vLLM's hashes, with a seed that all engines share."""
    seed, os.environ["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED"), "0"
    function = get_hash_fn_by_name(request.param)
    engine.init_none_hash(function)
    yield function
    del os.environ["PYTHONHASHSEED"]
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed


class Side:
    """The connector in the scheduler, and what an engine does to it for one request after another."""

    def __init__(self, hash_function: Any, adapters: Path) -> None:
        self._hasher = engine.get_request_block_hasher(BLOCK, hash_function)
        self._adapters = adapters
        self._connector = ConnectorScheduler(CPUOffloadingSpec(CONFIG), CONFIG)
        self._manager = self._connector._manager
        self._requests = 0

    def matched_and_stored(self, who: Who) -> tuple[int | None, list[OffloadKey]]:
        """Run a prompt: what the host had of it before, and the keys that it is stored under."""
        request = self._request(who)
        self._connector.add_request(request)
        matched = self._connector.match(request, 0)
        req_id = RequestId(request.request_id)
        # One token more than the blocks hold, so that all of them may be loaded.
        blocks = [list(map(BlockId, range(1, BLOCKS + 2)))]
        self._manager.allocated(req_id, blocks, 0, 0)
        run = ScheduledRequest(req_id, tuple(blocks), True, 0, TOKENS + 1)
        message = self._manager.step(StepInput([run]))
        outcomes = {job.job_id: JobOutcome(1, frozenset(), copied_bytes=1) for job in message.stores}
        self._manager.report(WorkerReport(outcomes))
        keys = list(self._manager._requests[req_id].groups[0].keys)
        self._manager.finish_request(req_id, TOKENS)
        self._manager.step(StepInput([], finished=(req_id,)))
        self._manager.check()
        assert not self._connector.broken
        return matched, keys

    def close(self) -> None:
        self._connector.shutdown(0)

    def _request(self, who: Who) -> Request:
        self._requests += 1
        made = Request(
            request_id=f"request-{self._requests}",
            prompt_token_ids=None if who.embeds is not None else self._tokens(who),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            prompt_embeds=self._embeds(who),
            prompt_is_token_ids=[kind == "t" for kind in who.is_mixed for _ in range(BLOCK)] + [True]
            if who.is_mixed
            else None,
            mm_features=[
                MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset, 6))
                for name, offset in who.images
            ],
            lora_request=self._adapter(who),
            cache_salt=who.salt,
            block_hasher=self._hasher,
        )
        assert len(made.block_hashes) == BLOCKS
        return made

    def _tokens(self, who: Who) -> list[int]:
        return [0] * (TOKENS + 1) if who.is_mixed else list(range(TOKENS + 1))

    def _embeds(self, who: Who) -> Any:
        if who.embeds is None and not who.is_mixed:
            return None
        embeds = torch.zeros(TOKENS + 1, HIDDEN)
        embeds[0, 0] = who.embeds or 0.0
        return embeds

    def _adapter(self, who: Who) -> LoRARequest | None:
        if who.adapter is None:
            return None
        name, folder = who.adapter
        path = str(self._adapters / folder)
        number = 1 + int(hashlib.sha256(repr(who.adapter).encode()).hexdigest()[:6], 16)
        known = self._connector._adapters
        known.salt_of(number, path)
        known._thread.submit(lambda: None).result()
        assert known.salt_of(number, path) is not None
        return LoRARequest(name, number, path)


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    """Two folders with the same weights: what is in them tells nobody apart."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "adapter_model.safetensors").write_bytes(b"weights")
    return tmp_path


@pytest.fixture
def side(hash_function: Any, adapters: Path) -> Any:
    made = Side(hash_function, adapters)
    yield made
    made.close()


def _shared(one: list[OffloadKey], two: list[OffloadKey]) -> int:
    """Blocks at the beginning with the same key; behind them not a single one may be common."""
    count = next((index for index, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), len(one))
    assert not set(one[count:]) & set(two), "a chunk behind the first difference has the same key"
    return count


def test_prompts_that_differ_in_anything_have_no_key_and_no_file_name_in_common(side: Side) -> None:
    mapper = FileMapper(namespace_of(CONFIG))
    keys = {name: side.matched_and_stored(who)[1] for name, who in MATRIX.items()}
    for one, two in combinations(MATRIX, 2):
        expected = min(MATRIX[one].shared_blocks, MATRIX[two].shared_blocks)
        assert _shared(keys[one], keys[two]) == expected, (one, two)
    different = {key for found in keys.values() for key in found}
    assert len({mapper.name_of(key) for key in different}) == len(different)
    # The same again: the same keys.
    assert keys == {name: side.matched_and_stored(who)[1] for name, who in MATRIX.items()}


def test_the_host_serves_everyone_all_of_their_own_and_nothing_else(side: Side) -> None:
    for name, who in MATRIX.items():
        # The one whose prompt is without any of it comes first, and shares what is the same.
        shared = 0 if name == "nobody" else who.shared_blocks
        assert side.matched_and_stored(who)[0] == shared * BLOCK, name
    for name, who in MATRIX.items():
        assert side.matched_and_stored(who)[0] == TOKENS, name


def _memory_tier(_: Path) -> Tier:
    return MemoryTier(MemoryTierConfig(max_bytes=2**24), MonotonicClock())


def _fs_tier(root: Path) -> Tier:
    config = FsTierConfig(str(root / "store"), min_free_bytes=0)
    clocks = {"clock": MonotonicClock(), "wall_clock": WallClock()}
    return FsTier(config, namespace_of(CONFIG), [PAYLOAD_BYTES], **clocks)


@pytest.mark.parametrize("make", [_memory_tier, _fs_tier])
@pytest.mark.parametrize("hash_function", ["sha256"], indirect=True)
def test_a_tier_below_has_what_one_of_them_stored_and_no_chunk_of_the_others(
    side: Side, tmp_path: Path, make: Any
) -> None:
    keys = {name: side.matched_and_stored(who)[1] for name, who in MATRIX.items()}
    driver = TierDriver(make(tmp_path), [PAYLOAD_BYTES], lambda tier: tier.drain(0.02), patience_s=20)
    there: set[OffloadKey] = set()
    try:
        for own in keys.values():
            found = [answer is LookupResult.HIT for answer in driver.lookup(own)]
            assert found == [key in there for key in own]
            driver.store([key for key in own if key not in there])
            there |= set(own)
        for own in keys.values():
            # The driver compares the bytes with the key.
            assert driver.load(own) == [Outcome.DONE] * BLOCKS
    finally:
        driver.tier.shutdown()


@pytest.mark.parametrize("hash_function", ["sha256"], indirect=True)
def test_an_adapter_whose_weights_were_replaced_finds_nothing_of_the_old_ones(
    hash_function: Any, adapters: Path
) -> None:
    keys = []
    for weights in (b"weights", b"other weights", b"weights"):
        (adapters / "one" / "adapter_model.safetensors").write_bytes(weights)
        # An engine started anew: the same name, path and number.
        side = Side(hash_function, adapters)
        keys.append(side.matched_and_stored(MATRIX["adapter"])[1])
        side.close()
    assert not set(keys[0]) & set(keys[1])
    assert keys[0] == keys[2]
