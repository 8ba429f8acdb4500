"""What all benchmarks share: paired, interleaved measurements and their JSON lines."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: medians of `n` interleaved rounds; `spread` is (max - min) / median of ours."""

    case: str
    unit: str
    ours: float
    peer_name: str | None
    peer: float | None
    limit_name: str | None
    limit: float | None
    n: int
    spread: float


def interleave(
    rounds: int, runs: Mapping[str, Callable[[], dict[str, float]]]
) -> dict[str, dict[str, list[float]]]:
    """Run every contender once a round, in turn; returns contender → case → values."""
    values: dict[str, dict[str, list[float]]] = {name: {} for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            print(f"round {number + 1}/{rounds}: {name}", file=sys.stderr)
            for case, value in run().items():
                values[name].setdefault(case, []).append(value)
    return values


def row(
    case: str,
    unit: str,
    values: Mapping[str, Mapping[str, list[float]]],
    names: tuple[str, str | None, str | None],
) -> Row:
    """The row of one case; `names` are ours, the peer and the limit (None: there is none)."""
    ours, peer, limit = ([*values[name].get(case, [])] if name else [] for name in names)
    middle = statistics.median(ours)
    return Row(
        case=case,
        unit=unit,
        ours=round(middle, 4),
        peer_name=names[1] if peer else None,
        peer=round(statistics.median(peer), 4) if peer else None,
        limit_name=names[2] if limit else None,
        limit=round(statistics.median(limit), 4) if limit else None,
        n=len(ours),
        spread=round((max(ours) - min(ours)) / middle, 3),
    )


def emit(rows: Sequence[Row], *, as_json: bool) -> None:
    """Print the rows: one JSON object a line, or a table for people."""
    if as_json:
        for entry in rows:
            print(json.dumps(asdict(entry)))
        return
    print(f"{'case':28} {'unit':10} {'ours':>9} {'peer':>9} {'limit':>9} {'ours/peer':>10}")
    for entry in rows:
        ratio = f"{entry.ours / entry.peer:.2f}" if entry.peer else "-"
        peer, limit = (f"{value:.3f}" if value is not None else "-" for value in (entry.peer, entry.limit))
        print(f"{entry.case:28} {entry.unit:10} {entry.ours:9.3f} {peer:>9} {limit:>9} {ratio:>10}")
