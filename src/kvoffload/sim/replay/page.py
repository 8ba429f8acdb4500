"""The result of replays as one HTML file: a table and curves, no scripts, nothing from the network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kvoffload.sim.replay.stack import Curve
from kvoffload.sim.replay.summary import RunResult, lines_of

_WIDTH, _HEIGHT, _MARGIN = 640, 300, 48
_STYLE = (
    "body{font:15px sans-serif;max-width:60rem;margin:2rem auto}td,th{padding:.2rem .8rem;text-align:right}"
)


def page_of(title: str, results: Sequence[RunResult], curve: Curve | None, chunk_bytes: int) -> str:
    """The whole page."""
    rows = "".join(
        f"<tr><td>{escape(run.policy)}</td><td>{escape(', '.join(f'{t.name} {t.size_bytes / 2**30:.0f} GiB' for t in run.tiers))}</td>"
        f"<td>{run.hit_ratio:.4f}</td><td>{run.ttft_saved_s.get('p50', 0):.3f}</td><td>{run.ttft_saved_s.get('p99', 0):.3f}</td></tr>"
        for run in results
    )
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1><table><tr><th>policy<th>tiers<th>prefix hits<th>TTFT saved p50, s<th>p99, s</tr>{rows}</table>",
        f"<pre>{escape(chr(10).join(lines_of(results)))}</pre>",
    ]
    if curve is not None:
        dashed = "block misses" if curve.miss_ratio else "their error, from a sample"
        parts.append(f"<h2>LRU by size: prefix hits (full) and {dashed} (dashed)</h2>")
        parts.append(_plot(curve, chunk_bytes))
    return "\n".join([*parts, "</html>\n"])


def _plot(curve: Curve, chunk_bytes: int) -> str:
    """Sizes double from point to point, so their number is the axis."""
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(curve.capacities) - 1)
    places = [_MARGIN + step * index for index in range(len(curve.capacities))]

    def line(values: Sequence[float], dashes: str) -> str:
        points = " ".join(f"{x:.1f},{_y(value):.1f}" for x, value in zip(places, values, strict=True))
        return f'<polyline fill="none" stroke="currentColor" stroke-dasharray="{dashes}" points="{points}"/>'

    marks = "".join(
        f'<text x="{x:.1f}" y="{_HEIGHT - _MARGIN + 18}" font-size="10" text-anchor="middle">{blocks * chunk_bytes / 2**30:.0f}</text>'
        for x, blocks in zip(places, curve.capacities, strict=True)
    )
    scale = "".join(
        f'<text x="{_MARGIN - 8}" y="{_y(value) + 4:.1f}" font-size="10" text-anchor="end">{value}</text>'
        for value in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{line(curve.prefix_hit_ratio, "0")}'
        f"{line(curve.miss_ratio or curve.error or (), '4 3')}{marks}{scale}"
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 6}" font-size="11" text-anchor="middle">GiB</text></svg>'
    )


def _y(value: float) -> float:
    return _HEIGHT - _MARGIN - value * (_HEIGHT - 2 * _MARGIN)
