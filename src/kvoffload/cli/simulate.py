"""`kvoffload simulate`: what tiers, sizes and policies would do for recorded traffic. No engine, no GPU."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvoffload.sim.replay.options import ReplayOptions
    from kvoffload.sim.replay.stack import Curve
    from kvoffload.sim.replay.summary import RunResult
    from kvoffload.sim.traces.base import Trace


def simulate(
    trace: Annotated[Path, typer.Argument(help="Mooncake JSONL, or block hashes as JSONL.")],
    *,
    tiers: Annotated[
        str, typer.Option(metavar="NAME=SIZE[@READ/WRITE/LATENCY],…", help="The fastest first.")
    ] = "host=64GiB",
    policy: Annotated[str, typer.Option(metavar="NAME,…", help="Or module:Class; a run for each.")] = "lru",
    sweep: Annotated[
        str | None, typer.Option(metavar="NAME=SIZE,SIZE,…", help="Other sizes of one tier; a run for each.")
    ] = None,
    bytes_per_token: Annotated[
        int, typer.Option(min=1, help="KV of a token; `kvoffload plan` says it. Default: 8 B, 16 bits, GQA.")
    ] = 131_072,
    prefill_rate: Annotated[
        float, typer.Option(min=1, help="Tokens a second, of all engines that the tiers serve.")
    ] = 50_000.0,
    admission: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=NUMBER,…", help="store_threshold, store_min_prompt_tokens, store_max_tokens."
        ),
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="LRU at all sizes, in one pass.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same as a page, with curves.")
    ] = None,
) -> None:
    """Replay a trace against tiers under virtual time: prefix hits, bytes moved, evictions, time to first token saved.

    The tiers' indexes and policies are the ones that serve; the engine is a queue of prefills whose device keeps
    nothing, so the hits are those of the tiers alone.
    """
    from kvoffload.sim.replay.summary import curve_of, run_replays  # noqa: PLC0415

    found = _open(trace)
    plain = _options(tiers, bytes_per_token, prefill_rate, admission)
    results = run_replays(found, _runs(plain, policy, sweep))
    line = curve_of(found, bytes_per_token) if curve or html is not None else None
    chunk_bytes = found.block_tokens * bytes_per_token
    if html is not None:
        from kvoffload.sim.replay.page import page_of  # noqa: PLC0415

        html.write_text(page_of(f"{trace.name}: replay", results, line, chunk_bytes), encoding="utf-8")
    _print(results, line if curve else None, chunk_bytes, as_json=as_json)
    if found.note and not as_json:
        print(f"this trace: {found.note}")


def _open(path: Path) -> Trace:
    from kvoffload.errors import ConfigError  # noqa: PLC0415
    from kvoffload.sim.traces.opening import open_traffic  # noqa: PLC0415

    found = open_traffic(path)
    if not found.knows_blocks:
        raise ConfigError(
            f"{path}: has lengths only and does not say which prompts begin alike, so nothing about hits can be told from it"
        )
    return found


def _options(tiers: str, bytes_per_token: int, prefill_rate: float, admission: str | None) -> ReplayOptions:
    from kvoffload.sim.replay.options import ReplayOptions, parse_tiers, with_admission  # noqa: PLC0415

    plain = ReplayOptions(
        parse_tiers(tiers), bytes_per_token=bytes_per_token, prefill_tokens_per_s=prefill_rate
    )
    return plain if admission is None else with_admission(plain, admission)


def _runs(plain: ReplayOptions, policies: str, sweep: str | None) -> list[ReplayOptions]:
    """One for each policy and each size."""
    from kvoffload.policies.factory import EVICTION_POLICIES  # noqa: PLC0415
    from kvoffload.sim.replay.options import parse_sweep  # noqa: PLC0415

    names = [name.strip() for name in policies.split(",")]
    for name in names:
        EVICTION_POLICIES.find(name, None, "--policy")
    variants = parse_sweep(sweep, plain.tiers) if sweep else [plain.tiers]
    return [replace(plain, tiers=tiers, policy=name) for tiers in variants for name in names]


def _print(results: list[RunResult], curve: Curve | None, chunk_bytes: int, *, as_json: bool) -> None:
    from kvoffload.sim.replay.summary import curve_lines, lines_of  # noqa: PLC0415

    if as_json:
        shown = asdict(curve) if curve else None
        print(json.dumps({"runs": [asdict(run) for run in results], "curve": shown}))
        return
    for text in lines_of(results) + (curve_lines(curve, chunk_bytes) if curve else []):
        print(text)
