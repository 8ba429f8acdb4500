"""Fresh interpreters, different PYTHONHASHSEED: equal keys, or a refusal that says how to mend it.

A store whose keys nobody can compute again writes for ever and reads nothing. Needs vLLM installed, no engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

pytest.importorskip("vllm")

_PROGRAM = """
import json, os, sys
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils as engine
from kvoffload.config.validate import resolve_hash_seed
from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import make_offload_key

answers = []
for algorithm, declared in json.loads(sys.argv[1]):
    try:
        identity = resolve_hash_seed(algorithm, os.environ.get("PYTHONHASHSEED"), declared)
    except ConfigError as error:
        answers.append({"refusal": str(error)})
        continue
    hash_function = get_hash_fn_by_name(algorithm)
    engine.init_none_hash(hash_function)
    keys, parent = [], None
    for block in range(3):
        parent = engine.hash_block_tokens(hash_function, parent, list(range(128 * block, 128 * block + 128)))
        keys.append(make_offload_key(parent, 0).hex())
    answers.append({"identity": identity, "keys": keys})
print("ANSWERS" + json.dumps(answers))
"""

SECURE = ("sha256", "sha256_cbor")
FAST = ("xxhash", "xxhash_cbor")
ALGORITHMS = (*SECURE, *FAST)
SEEDS = (None, None, "0", "1", "random", "random")
"""Each interpreter's PYTHONHASHSEED; None: not set."""
DECLARED = (None, "0", "1", "random")


@dataclass(frozen=True)
class Answer:
    """What one fresh interpreter says to one question."""

    identity: str | None = None
    keys: tuple[str, ...] = ()
    refusal: str | None = None


@pytest.fixture(scope="module")
def answers() -> list[dict[tuple[str, str | None], Answer]]:
    """Per interpreter: the answer for every algorithm and declared seed."""
    questions = [(algorithm, declared) for algorithm in ALGORITHMS for declared in DECLARED]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda seed: _ask(seed, questions), SEEDS))


def _ask(seed: str | None, questions: list) -> dict:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if seed is not None:
        environment["PYTHONHASHSEED"] = seed
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(questions)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")] or [None]
    assert line is not None, done.stderr[-2000:]
    found = json.loads(line.removeprefix("ANSWERS"))
    return {
        tuple(question): Answer(item.get("identity"), tuple(item.get("keys", ())), item.get("refusal"))
        for question, item in zip(questions, found, strict=True)
    }


@pytest.mark.parametrize("algorithm", SECURE)
def test_without_a_seed_all_interpreters_have_the_same_keys(answers, algorithm: str) -> None:
    one, two = (answers[index][algorithm, None] for index in (0, 1))
    assert one.keys
    assert one == two


@pytest.mark.parametrize("algorithm", FAST)
def test_an_algorithm_with_a_random_seed_is_refused(answers, algorithm: str) -> None:
    refusal = answers[0][algorithm, None].refusal
    assert refusal
    assert algorithm in refusal
    assert "--prefix-caching-hash-algo sha256" in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_seed_that_is_set_but_not_declared_is_refused(answers, algorithm: str) -> None:
    for seed, found in zip(SEEDS, answers, strict=True):
        if seed is not None:
            refusal = found[algorithm, None].refusal
            assert refusal
            assert f"hash_seed={seed!r}" in refusal
            assert "unset PYTHONHASHSEED" in refusal


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_declared_seed_that_is_not_the_one_in_force_is_refused(answers, algorithm: str) -> None:
    for seed, found in zip(SEEDS, answers, strict=True):
        for declared in DECLARED:
            if declared is not None and declared != seed:
                assert found[algorithm, declared].refusal


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_declared_seed_gives_equal_keys_in_fresh_interpreters(answers, algorithm: str) -> None:
    one, two = (answers[index][algorithm, "random"] for index in (4, 5))
    assert one.keys, one
    assert one == two


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_keys_are_equal_exactly_where_identities_are(answers, algorithm: str) -> None:
    served = [
        answer
        for found in answers
        for (name, _), answer in found.items()
        if name == algorithm and answer.keys
    ]
    assert len(served) >= 4
    for one in served:
        for two in served:
            assert (one.identity == two.identity) == (one.keys == two.keys), (one, two)
