"""`kvoffload verify-layout`: is a model's KV stored once and readable under other parallel layouts? No GPU, no engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvoffload.errors import ConfigError

if TYPE_CHECKING:
    from kvoffload.cli.layout_trial import Answer, Refusal
    from kvoffload.config.pages import LayerPage


def verify_layout(
    config: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A model's config.json; instead of the numbers below.")
    ] = None,
    *,
    kv_heads: Annotated[int, typer.Option(min=1, help="KV heads of the whole model.")] = 8,
    head_size: Annotated[int, typer.Option(min=1, help="Size of one head, K and V alike.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = 4,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a block on one rank.")] = 16,
    dtype_bytes: Annotated[int, typer.Option(min=1, help="Bytes of one number in the KV cache.")] = 2,
    tp: Annotated[str, typer.Option(metavar="N,N", help="Tensor-parallel sizes.")] = "1,2,4,8",
    pp: Annotated[str, typer.Option(metavar="N,N", help="Pipeline-parallel sizes.")] = "1",
    dcp: Annotated[str, typer.Option(metavar="N,N", help="Decode-context-parallel sizes.")] = "1",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")] = False,
) -> None:
    """Store synthetic KV under every parallel layout, read it under every other, and compare byte for byte.

    Both orders of heads and tokens (HND and NHD) are tried in all pairs. Exit code 1 if anything that was read differs
    from what was stored, or if no layout at all is certified for some kind of layer.
    """
    from kvoffload.cli.layout_trial import try_out, variants  # noqa: PLC0415

    pages = _pages(config, (kv_heads, head_size, layers), block_size, dtype_bytes)
    engines = variants(_numbers("--tp", tp), _numbers("--pp", pp), _numbers("--dcp", dcp))
    if not engines:
        raise ConfigError(
            "verify-layout: no parallel layout can be made of these sizes; --dcp must divide --tp"
        )
    found = list(try_out(pages, engines))
    (_print_json if as_json else _print_tables)(found)
    answers = [entry for entry in found if isinstance(entry, _answer_type())]
    proved = {answer.kind for answer in answers} == {entry.kind for entry in found}
    raise typer.Exit(0 if proved and all(answer.byte_equal for answer in answers) else 1)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ConfigError(f"verify-layout: {option} takes whole numbers from 1 on, as 1,2,4, not {text!r}")
    return tuple(dict.fromkeys(found))


def _pages(
    config: Path | None, shape: tuple[int, int, int], block_size: int, dtype_bytes: int
) -> Sequence[LayerPage | None]:
    """The pages of all layers, from a model's configuration or from the numbers (KV heads, head size, layers)."""
    from kvoffload.config.pages import AttentionPage  # noqa: PLC0415
    from kvoffload.layout.families import EngineHabits, pages_of_config  # noqa: PLC0415

    if config is None:
        kv_heads, head_size, layers = shape
        part = head_size * dtype_bytes
        return [AttentionPage(kv_heads, (part, part), block_size)] * layers
    try:
        fields: Any = json.loads(config.read_text(encoding="utf-8"))
        return pages_of_config(fields, EngineHabits(block_size, dtype_bytes))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"verify-layout: {config} is not a model's config.json: {type(error).__name__}: {error}"
        ) from error


def _print_json(found: Sequence[Answer | Refusal]) -> None:
    from dataclasses import asdict  # noqa: PLC0415

    for entry in found:
        print(json.dumps(asdict(entry)))


def _print_tables(found: Sequence[Answer | Refusal]) -> None:
    """One table per kind of layer: who stored (down), who reads (across, by number)."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(soft_wrap=True, highlight=False)
    for kind in dict.fromkeys(entry.kind for entry in found):
        console.print(f"\n{kind}", style="bold")
        _print_table(console, [entry for entry in found if entry.kind == kind])
        for entry in found:
            if entry.kind == kind:
                _print_line(console, entry)
    verdicts = [entry.byte_equal for entry in found if isinstance(entry, _answer_type())]
    console.print(f"\n{sum(verdicts)} of {len(verdicts)} pairs are byte-equal")


def _print_table(console: Any, found: Sequence[Answer | Refusal]) -> None:
    from rich.table import Table  # noqa: PLC0415

    answers = [entry for entry in found if isinstance(entry, _answer_type())]
    names = list(dict.fromkeys(answer.stored_under for answer in answers))
    table = Table("", "stored under", *(f"{i}" for i, _ in enumerate(names, start=1)), caption="read under")
    for number, stored in enumerate(names, start=1):
        row = ("=" if answer.byte_equal else "≠" for answer in answers if answer.stored_under == stored)
        table.add_row(str(number), stored, *row)
    if names:
        console.print(table)


def _print_line(console: Any, entry: Answer | Refusal) -> None:
    """What needs words: a difference, or a layout that is not certified."""
    from rich.markup import escape  # noqa: PLC0415

    from kvoffload.cli.layout_trial import Refusal  # noqa: PLC0415

    if isinstance(entry, Refusal):
        console.print(f"not certified under {entry.variant}, so not shared: {escape(entry.reason)}")
    elif not entry.byte_equal:
        console.print(
            f"stored under {entry.stored_under}, read under {entry.read_under}: {escape(str(entry.difference))}"
        )


def _answer_type() -> type[Answer]:
    """The class, imported when it is needed: `kvoffload --help` loads neither numpy nor layouts."""
    from kvoffload.cli.layout_trial import Answer  # noqa: PLC0415

    return Answer
