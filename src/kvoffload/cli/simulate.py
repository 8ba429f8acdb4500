"""`kvoffload simulate`: what tiers, sizes and policies would do for recorded traffic. No engine, no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    trace: Annotated[Path, typer.Argument(help="Mooncake JSONL, or block hashes as JSONL.")],
    *,
    tiers: Annotated[
        str, typer.Option(metavar="NAME=SIZE[@READ/WRITE/LATENCY],…", help="The fastest first.")
    ] = "host=64GiB",
    policy: Annotated[str, typer.Option(metavar="NAME,…", help="Eviction policies; a run for each.")] = "lru",
    sweep: Annotated[
        str | None, typer.Option(metavar="NAME=SIZE,SIZE,…", help="Other sizes of one tier; a run for each.")
    ] = None,
    bytes_per_token: Annotated[
        int, typer.Option(min=1, help="KV of a token; `kvoffload plan` says it. Default: 8 B, 16 bits, GQA.")
    ] = 131_072,
    prefill_rate: Annotated[
        float, typer.Option(min=1, help="Tokens a second, of all engines that the tiers serve.")
    ] = 50_000.0,
    store_threshold: Annotated[
        int, typer.Option(min=0, help="Store in the first tier when offered this often.")
    ] = 0,
    curve: Annotated[bool, typer.Option("--curve", help="LRU at all sizes, in one pass.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="The same as a page, with curves.")] = None,
) -> None:
    """Replay a trace against tiers under virtual time: prefix hits, bytes moved, evictions, time to first token saved.

    The tiers' indexes and policies are the ones that serve; the engine is a queue of prefills whose device keeps
    nothing, so the hits are those of the tiers alone.
    """
    import json  # noqa: PLC0415
    from dataclasses import asdict  # noqa: PLC0415

    from kvoffload.errors import ConfigError  # noqa: PLC0415
    from kvoffload.policies.factory import EVICTION_POLICIES  # noqa: PLC0415
    from kvoffload.sim.replay.options import ReplayOptions, parse_sweep, parse_tiers  # noqa: PLC0415
    from kvoffload.sim.replay.page import page_of  # noqa: PLC0415
    from kvoffload.sim.replay.summary import curve_lines, curve_of, lines_of, run_replays  # noqa: PLC0415
    from kvoffload.sim.traces.opening import open_trace  # noqa: PLC0415

    found = open_trace(trace)
    if not found.knows_blocks:
        raise ConfigError(
            f"{trace}: has lengths only and does not say which prompts begin alike, so nothing about hits can be told from it"
        )
    policies = [name.strip() for name in policy.split(",")]
    for name in policies:
        EVICTION_POLICIES.find(name, None, "--policy")
    parsed = parse_tiers(tiers)
    variants = parse_sweep(sweep, parsed) if sweep else [parsed]
    runs = [
        ReplayOptions(sizes, name, bytes_per_token, prefill_rate, store_threshold)
        for sizes in variants
        for name in policies
    ]
    results = run_replays(found, runs)
    line = curve_of(found, bytes_per_token) if curve or html is not None else None
    chunk_bytes = found.block_tokens * bytes_per_token
    if html is not None:
        html.write_text(page_of(f"{trace.name}: replay", results, line, chunk_bytes), encoding="utf-8")
    if as_json:
        shown = asdict(line) if line and curve else None
        print(json.dumps({"trace": str(trace), "runs": [asdict(run) for run in results], "curve": shown}))
        return
    for text in lines_of(results) + (curve_lines(line, chunk_bytes) if line and curve else []):
        print(text)
