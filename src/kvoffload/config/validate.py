"""Checks that need several facts at once: chunk sizes against groups, the hash seed against the algorithm."""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload.config.parse import WHERE
from kvoffload.errors import ConfigError

_SEEDED_BY_CONSTANT = ("sha256", "sha256_cbor")


def resolve_blocks_per_chunk(
    tokens_per_block: Sequence[int], block_size: int | None, blocks_per_chunk: int | None
) -> int:
    """How many blocks one chunk has.

    Args:
        tokens_per_block: Tokens per block of every offloaded group.
        block_size: The option of that name: tokens per chunk.
        blocks_per_chunk: The option of that name.

    Raises:
        ConfigError: the sizes do not divide; names the sizes, the groups and the other option.
    """
    if blocks_per_chunk is not None:
        return blocks_per_chunk
    if block_size is None:
        return 1
    sizes = sorted(set(tokens_per_block))
    listed = ", ".join(f"group {index}: {size}" for index, size in enumerate(tokens_per_block))
    if len(sizes) != 1:
        raise ConfigError(
            f"{WHERE}: block_size={block_size} tokens cannot hold for groups with different block sizes ({listed}); "
            "give blocks_per_chunk instead"
        )
    if block_size % sizes[0]:
        above = (block_size // sizes[0] + 1) * sizes[0]
        raise ConfigError(
            f"{WHERE}: block_size={block_size} tokens is not a multiple of the engine's block size ({listed}); "
            f"use block_size={above} or give blocks_per_chunk instead"
        )
    return block_size // sizes[0]


def check_divides_hash(tokens_per_block: Sequence[int], tokens_per_hash: int) -> None:
    """Raise ConfigError unless every group's block is a whole number of block hashes."""
    bad = [f"group {i}: {size}" for i, size in enumerate(tokens_per_block) if size % tokens_per_hash]
    if bad:
        raise ConfigError(
            f"block sizes ({', '.join(bad)} tokens) are no multiple of the engine's hash unit ({tokens_per_hash} tokens); "
            "start the engine with --enable-prefix-caching or set its --prefix-match-unit so that it divides them"
        )


def resolve_hash_seed(algorithm: str, environment_seed: str | None, declared_seed: str | None) -> str:
    """The identity of the seed of all block hashes, or a refusal.

    Keys must be equal in fresh interpreters, or nothing stored would ever be found again. The engine derives its
    first hash from PYTHONHASHSEED if that is set, from a constant otherwise (cryptographic algorithms) or from
    random bytes (xxhash). So a seed that is set must be declared: then every engine with this configuration
    either has the same keys or does not start.

    Args:
        algorithm: The engine's prefix-caching hash algorithm.
        environment_seed: PYTHONHASHSEED as the engine's process sees it, None if unset.
        declared_seed: The option `hash_seed`.

    Raises:
        ConfigError: the keys would depend on something that is not declared.
    """
    if environment_seed is None:
        if declared_seed is not None:
            raise ConfigError(
                f"{WHERE}: hash_seed={declared_seed!r} is declared but PYTHONHASHSEED is not set; start the engine with "
                f"PYTHONHASHSEED={declared_seed} or leave hash_seed out"
            )
        if algorithm not in _SEEDED_BY_CONSTANT:
            raise ConfigError(
                f"block hashes of {algorithm!r} start from random bytes in every process, so nothing stored would be found "
                "after a restart; start with --prefix-caching-hash-algo sha256, or set PYTHONHASHSEED to one value "
                "everywhere and declare it with hash_seed"
            )
        return "engine-default"
    if environment_seed != declared_seed:
        raise ConfigError(
            f"PYTHONHASHSEED={environment_seed!r} changes every block hash, so only engines with the same value share KV, "
            f"but {WHERE} says hash_seed={declared_seed!r}; unset PYTHONHASHSEED (best), or declare it with "
            f"hash_seed={environment_seed!r}"
        )
    return f"PYTHONHASHSEED={environment_seed}"
