"""The picture of the demo: times to the first token, three bars a prompt, from zero and on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvoffload.cli.demo.measure import Measurement

_COLD, _WARM, _DEVICE = "#9aa5b1", "#0b7a75", "#e0a030"
_INK = "#1f2933"
_BAR = 0.26


def draw(results: Sequence[Measurement], subtitle: str, path: Path) -> None:
    """Write the picture; its kind (SVG, PNG) follows from the name of the file."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    # Text stays text in an SVG; the salt makes its ids, and so the file, the same for the same figures.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kvoffload", "font.family": "sans-serif"}):
        figure = Figure(figsize=(9.6, 1.9 + 0.92 * len(results)), layout="constrained")
        axes = figure.add_subplot()
        _draw_bars(axes, results)
        _draw_words(figure, axes, results, subtitle)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=130)


def _draw_bars(axes: Any, results: Sequence[Measurement]) -> None:
    kinds = (
        ("cold: the whole prompt is computed", _COLD, [result.cold for result in results]),
        ("evicted, back from kvoffload", _WARM, [result.warm for result in results]),
        ("still in the device cache", _DEVICE, [result.device for result in results]),
    )
    longest = max(result.cold.reply.ttft_s for result in results)
    for number, (label, colour, samples) in enumerate(kinds):
        places = [row + (number - 1) * _BAR for row in range(len(samples))]
        times = [sample.reply.ttft_s for sample in samples]
        axes.barh(places, times, height=_BAR * 0.9, color=colour, label=label)
        for index, (place, time_s) in enumerate(zip(places, times, strict=True)):
            text = f"{time_s:.2f} s"
            if number == 1:
                text += f"   {1 / results[index].warm_to_cold:.0f}× sooner than cold"
            weight = "bold" if number == 1 else "normal"
            axes.text(
                time_s + longest * 0.008, place, text, va="center", fontsize=9, color=_INK, weight=weight
            )


def _draw_words(figure: Any, axes: Any, results: Sequence[Measurement], subtitle: str) -> None:
    names = [f"{result.title}\n{result.warm.reply.prompt_tokens:,} tokens" for result in results]
    axes.set_yticks(range(len(results)), names, fontsize=10, color=_INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(result.cold.reply.ttft_s for result in results) * 1.1)
    axes.set_xlabel("time to first token, in seconds", color=_INK)
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(subtitle, loc="left", fontsize=9.5, color="#52606d")
    figure.suptitle(
        "Evicted prompts come back instead of being computed again",
        x=0.01,
        ha="left",
        fontsize=14,
        weight="bold",
        color=_INK,
    )
    axes.legend(frameon=False, fontsize=9.5, loc="lower right", labelcolor=_INK)
