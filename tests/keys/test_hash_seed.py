"""Keys must be equal in fresh interpreters, or nothing stored would be found after a restart: equal, or a refusal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kvoffload.config.validate import resolve_hash_seed
from kvoffload.errors import ConfigError

SCRIPT = """
import hashlib, os, sys
from kvoffload.config.validate import resolve_hash_seed
from kvoffload.errors import ConfigError
from kvoffload.keys.file_mapper import FileMapper
from kvoffload.keys.fingerprint import namespace_of
from kvoffload.keys.offload_key import make_offload_key
from kvoffload.testing.configs import example_config
import dataclasses

declared = sys.argv[1] or None
try:
    seed = resolve_hash_seed("sha256", os.environ.get("PYTHONHASHSEED"), declared)
except ConfigError as error:
    print("refused:", error)
    sys.exit()
config = example_config()
config = dataclasses.replace(config, cache=dataclasses.replace(config.cache, hash_seed=seed))
namespace = namespace_of(config)
key, mapper, parent = None, FileMapper(namespace), b"engine-default"
print(namespace.digest)
for token in range(50):
    parent = hashlib.sha256(parent + token.to_bytes(4, "big")).digest()
    key = make_offload_key(parent, token % 3)
    print(key.hex(), mapper.name_of(key))
"""
FRESH_SEEDS = (None, "0", "1", "random")


def run_fresh(seed: str | None, declared: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if seed is not None:
        environment["PYTHONHASHSEED"] = seed
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, declared or ""],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def undeclared() -> dict[str | None, str]:
    return {seed: run_fresh(seed) for seed in FRESH_SEEDS}


def test_fresh_interpreters_make_equal_keys_or_refuse(undeclared: dict[str | None, str]) -> None:
    assert undeclared[None] == run_fresh(None)
    assert len(undeclared[None].splitlines()) == 51
    for seed in ("0", "1", "random"):
        assert undeclared[seed].startswith("refused:"), (seed, undeclared[seed])


def test_a_refusal_says_what_was_found_and_both_ways_out(undeclared: dict[str | None, str]) -> None:
    for seed in ("0", "1", "random"):
        assert f"PYTHONHASHSEED={seed!r}" in undeclared[seed]
        assert "unset PYTHONHASHSEED" in undeclared[seed]
        assert f"hash_seed={seed!r}" in undeclared[seed]


def test_a_declared_seed_gives_equal_keys_in_a_namespace_of_its_own(
    undeclared: dict[str | None, str],
) -> None:
    zero = run_fresh("0", declared="0")
    assert zero == run_fresh("0", declared="0")
    (digest, *keys), (default_digest, *default_keys) = zero.splitlines(), undeclared[None].splitlines()
    assert digest != default_digest
    assert [line.split()[0] for line in keys] == [line.split()[0] for line in default_keys]
    assert run_fresh("0", declared="1").startswith("refused:")
    assert run_fresh(None, declared="0").startswith("refused:")


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_cryptographic_hashes_need_no_seed(algorithm: str) -> None:
    assert resolve_hash_seed(algorithm, None, None) == "engine-default"


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor", "builtin", "something-new"])
def test_any_other_hash_without_a_seed_is_refused_with_both_remedies(algorithm: str) -> None:
    with pytest.raises(ConfigError, match="random bytes in every process") as caught:
        resolve_hash_seed(algorithm, None, None)
    for part in (algorithm, "--prefix-caching-hash-algo sha256", "PYTHONHASHSEED", "hash_seed"):
        assert part in str(caught.value)


@pytest.mark.parametrize("algorithm", ["sha256", "xxhash"])
def test_a_seed_that_is_set_must_be_declared_and_a_declared_one_set(algorithm: str) -> None:
    assert resolve_hash_seed(algorithm, "7", "7") == resolve_hash_seed(algorithm, "7", "7")
    assert resolve_hash_seed(algorithm, "7", "7") != resolve_hash_seed(algorithm, "8", "8")
    for environment, declared in (("7", None), ("7", "8"), (None, "7"), ("", None), ("random", None)):
        with pytest.raises(ConfigError, match="hash_seed"):
            resolve_hash_seed(algorithm, environment, declared)
