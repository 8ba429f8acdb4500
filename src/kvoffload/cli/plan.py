"""`kvoffload plan`: how much KV a model makes, how many tokens fit where, and what the next GiB is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvoffload.errors import ConfigError

if TYPE_CHECKING:
    from kvoffload.sim.planning.budget import Place, Traffic
    from kvoffload.sim.planning.model import ModelKv
    from kvoffload.sim.traces.base import Trace


def plan(
    model_config: Annotated[Path, typer.Argument(help="A model's config.json, or its directory.")],
    *,
    budget: Annotated[
        str, typer.Option(metavar="NAME=SIZE,…", help="Places for KV, such as device, host, fs.")
    ] = "host=64GiB,fs=1TiB",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recorded traffic, as for `simulate`.")
    ] = None,
    kv_dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Type of the KV cache, as fp8; auto: the checkpoint's.")
    ] = "auto",
    context: Annotated[
        int, typer.Option(min=1, help="Tokens of the sequence whose device memory is shown.")
    ] = 32_768,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")
    ] = False,
) -> None:
    """Bytes per token by group of layers, from the configuration alone; then what each place of --budget holds.

    With a trace: how many of its prompts fit, the prefix hits with LRU at each size, and what one GiB more would add.
    Models with layers whose KV is not known are refused, not guessed.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from kvoffload.sim.planning.budget import parse_budget, places_of, traffic_of  # noqa: PLC0415
    from kvoffload.sim.planning.model import kv_of_config  # noqa: PLC0415
    from kvoffload.sim.traces.opening import open_traffic  # noqa: PLC0415

    model = kv_of_config(_read(model_config), kv_dtype)
    found = open_traffic(trace) if trace is not None else None
    traffic = traffic_of(found) if found is not None else None
    places = places_of(model, parse_budget(budget), found, traffic)
    if as_json:
        shown: dict[str, Any] = {
            "bytes_per_token": model.bytes_per_token,
            "bytes_per_state": model.bytes_per_state,
            "groups": [asdict(group) for group in model.groups],
            "sequence": {"tokens": context, "bytes": model.sequence_bytes(context)},
            "places": [asdict(place) for place in places],
            "traffic": asdict(traffic) if traffic else None,
        }
        print(json.dumps(shown))
        return
    _print_model(model, context)
    _print_places(places, traffic)
    if found is not None:
        _print_doubts(found)


def _read(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"plan: {file} cannot be read as a model's config.json: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"plan: {file} is not a model's config.json")
    return fields


def _print_model(model: ModelKv, context: int) -> None:
    from kvoffload.config.units import format_bytes  # noqa: PLC0415

    print("layers   kind                 bytes per token and layer   per state and layer")
    for group in model.groups:
        print(f"{group.layers:6}   {group.kind:<18} {group.bytes_per_token:27} {group.bytes_per_state:21}")
    print(f"a token, all layers:  {model.bytes_per_token} bytes")
    if model.bytes_per_state:
        print(
            f"a state, all layers:  {format_bytes(model.bytes_per_state)}, for each place where a prefix may end"
        )
    print(f"a sequence of {context} tokens on the device:  {format_bytes(model.sequence_bytes(context))}")


def _print_places(places: list[Place], traffic: Traffic | None) -> None:
    from kvoffload.config.units import format_bytes  # noqa: PLC0415

    print()
    for place in places:
        size = format_bytes(place.size_bytes).partition(" (")[0]
        line = f"{place.name:<8} {size:>12}   {place.tokens} tokens"
        if place.prompts is not None and traffic is not None:
            line += f" = {place.prompts:.1f} prompts of {traffic.mean_tokens}"
        if place.hit_ratio is not None and place.next_gib_tokens is not None:
            line += f"; prefix hits {place.hit_ratio:.4f}; the next GiB: {place.next_gib_tokens:.0f} hit tokens more"
        print(line)


def _print_doubts(trace: Trace) -> None:
    if not trace.knows_blocks:
        print("This trace has lengths only: it says nothing about hits, nor about what more room is worth.")
    if trace.note:
        print(f"this trace: {trace.note}")
