"""Adapters, tenants and embedded prompts on one engine: 0 cross hits, full hits for the same, also after a restart.

The matrix of everything that tells prompts apart, without an engine: `test_isolation`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expect import DAMAGED, SAME_MATHS, assert_equal_outputs, distance
from kinds import on
from shelf import FsSubject
from tiny_models import make_adapter, prompts_of, random_tokens

(PROMPT,) = prompts_of(seed=21, number=1, tokens=1100)
CHUNKS = 8
TENANT = "tenant"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Three adapters by name; one is named like a tenant's salt."""
    root: Path = tmp_path_factory.mktemp("adapters")
    names = ("summaries", "titles", TENANT)
    return {
        name: {
            "lora_name": name,
            "lora_int_id": number,
            "lora_path": str(make_adapter(root, name, seed=number)),
        }
        for number, name in enumerate(names, start=1)
    }


def _owners(adapters: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {},
        *({"adapter": adapter} for adapter in adapters.values()),
        {"cache_salt": TENANT},
        {"embeds_seed": 1},
        {"embeds_seed": 2},
    ]


def _introduce(subject: FsSubject, adapters: dict[str, dict[str, Any]]) -> None:
    """Of the first request of an adapter nothing is kept: its files are read meanwhile."""
    for number, adapter in enumerate(adapters.values()):
        subject.engine.generate([random_tokens(900 + number, 20)], adapter=adapter)


@on("identities")
def test_everyone_gets_all_of_their_own_kv_and_nothing_else_also_after_a_restart(
    subject: FsSubject, adapters: dict[str, dict[str, Any]]
) -> None:
    owners = _owners(adapters)
    _introduce(subject, adapters)
    with subject.counting() as counted:
        first = []
        for owner in owners:
            first += subject.engine.generate([PROMPT], **owner)
            subject.evict_device()
    assert [output.cached_tokens for output in first] == [0] * len(owners)
    assert counted["kvoffload_loaded_chunks"] == 0
    assert counted["kvoffload_stored_chunks"] == CHUNKS * len(owners) == len(subject.chunk_files())
    # Without an adapter it is the plain model, whoever asks.
    plain = subject.cold([PROMPT])
    assert_equal_outputs([first[0], first[4]], plain * 2, SAME_MATHS)
    # Wrong KV would be seen: all the others differ from it, and from each other.
    others = [first[index] for index in (0, 1, 2, 3, 5, 6)]
    assert all(
        distance(one, two) > DAMAGED for index, one in enumerate(others) for two in others[index + 1 :]
    )

    for restarted in (False, True):
        if restarted:
            subject.restart()
            _introduce(subject, adapters)
        with subject.counting() as counted:
            again = []
            for owner in owners:
                again += subject.engine.generate([PROMPT], **owner)
                subject.evict_device()
        assert [output.cached_tokens for output in again] == [1024] * len(owners)
        assert counted["kvoffload_loaded_chunks"] == CHUNKS * len(owners)
        assert counted["kvoffload_stored_chunks"] == 0
        assert_equal_outputs(again, first, SAME_MATHS)
        loaded = counted.get("kvoffload_tier_chunks{outcome=done,tier=fs,verb=load}", 0)
        assert loaded == (CHUNKS * len(owners) if restarted else 0)
