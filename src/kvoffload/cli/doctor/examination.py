"""What `kvoffload doctor` does: asks all checks, one after the other, and prints what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvoffload.cli.doctor.check import Check, Verdict, guarded
from kvoffload.cli.doctor.machine import Machine, check_machine
from kvoffload.cli.doctor.model import check_model
from kvoffload.cli.doctor.object_store import check_object_store
from kvoffload.cli.doctor.software import check_software
from kvoffload.cli.doctor.storage import StorageOptions, check_storage
from kvoffload.cli.obj_option import config_of
from kvoffload.cli.store.output import print_json, shown

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}
_PLAIN_WIDTH = 150


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the engine shall get."""

    fs_path: str | None = None
    cpu_bytes: int | None = None
    fs_bytes: int | None = None
    model: Path | None = None
    tp: int = 1
    obj: str | None = None
    """An object store, as `--obj` of serve takes it."""


def examine(wishes: Wishes, *, as_json: bool) -> bool:
    """Check everything; returns whether an engine can be started."""
    console = Console(stderr=True)
    with console.status("examining …") if console.is_terminal and not as_json else nullcontext():
        checks = list(all_checks(wishes))
    worst = max((check.verdict for check in checks), key=list(Verdict).index)
    if as_json:
        print_json(
            {
                "verdict": worst.value,
                "checks": [
                    {"check": one.name, "found": one.found, "verdict": one.verdict.value, "mend": one.mend}
                    for one in checks
                ],
            }
        )
    else:
        _print(checks)
    return worst is not Verdict.FAIL


def all_checks(wishes: Wishes) -> Iterator[Check]:
    """Every check in the order of the table."""
    yield from guarded("software", lambda: check_software(os.environ))
    yield from guarded("machine", lambda: check_machine(Machine(), wishes.cpu_bytes))
    if wishes.fs_path is not None:
        path = wishes.fs_path
        yield from guarded(
            "directory", lambda: check_storage(path, StorageOptions(cap_bytes=wishes.fs_bytes))
        )
    if wishes.model is not None:
        model = wishes.model
        yield from guarded("model", lambda: check_model(model, wishes.tp))
    if wishes.obj is not None:
        config = config_of(wishes.obj)
        yield from guarded("object store", lambda: check_object_store(config))


def _print(checks: list[Check]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("check", "found", "verdict", "how to mend"):
        table.add_column(name, overflow="fold", no_wrap=name in ("check", "verdict"))
    for one in checks:
        table.add_row(
            one.name,
            Text(shown(one.found)),
            Text(one.verdict.value, _COLOURS[one.verdict]),
            Text(shown(one.mend)),
        )
    console.print(table)
    counts = {verdict: sum(one.verdict is verdict for one in checks) for verdict in Verdict}
    told = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    console.print(f"\n{told}")
