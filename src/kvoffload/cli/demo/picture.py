"""The picture of the demo: times to the first token, four bars a prompt, from zero and on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvoffload.cli.demo.results import Comeback, Measurement

_COLD, _WARM, _DEVICE, _DISK = "#9aa5b1", "#0b7a75", "#e0a030", "#5a5fc0"
_INK, _GREY, _GRID = "#1f2933", "#52606d", "#e4e7eb"
_BAR = 0.21
_WIDTH_IN, _ROW_IN, _HEAD_IN, _FOOT_IN, _NAMES_IN, _RIGHT_IN = 10.0, 1.05, 1.35, 0.65, 1.15, 0.25


def draw(results: Sequence[Measurement], comebacks: Sequence[Comeback], subtitle: str, path: Path) -> None:
    """Write the picture; its kind (SVG, PNG) follows from the name of the file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    height = _HEAD_IN + _ROW_IN * len(results) + _FOOT_IN
    # The salt makes the ids in the file, and so the file, the same for the same figures.
    with mpl.rc_context({"svg.hashsalt": "kvoffload", "font.family": "sans-serif", "text.color": _INK}):
        figure = Figure(figsize=(_WIDTH_IN, height))
        figure.subplots_adjust(
            left=_NAMES_IN / _WIDTH_IN,
            right=1 - _RIGHT_IN / _WIDTH_IN,
            bottom=_FOOT_IN / height,
            top=1 - _HEAD_IN / height,
        )
        axes = figure.add_subplot()
        _draw_bars(axes, results, comebacks)
        _draw_axes(axes, results)
        _draw_head(figure, axes, subtitle, height)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=130)


def _draw_bars(axes: Any, results: Sequence[Measurement], comebacks: Sequence[Comeback]) -> None:
    kinds = (
        ("cold: computed", _COLD, [result.cold_ttft_s for result in results]),
        ("evicted, back from kvoffload", _WARM, [result.warm_ttft_s for result in results]),
        ("never left the device cache", _DEVICE, [result.device_ttft_s for result in results]),
        ("after a restart, from disk", _DISK, [result.again.reply.ttft_s for result in comebacks]),
    )
    gap = _longest(results) * 0.008
    for number, (label, colour, times) in enumerate(kinds):
        places = [row + (number - 1.5) * _BAR for row in range(len(times))]
        axes.barh(places, times, height=_BAR * 0.9, color=colour, label=label)
        for place, time_s in zip(places, times, strict=True):
            weight = "bold" if colour in (_WARM, _DISK) else "normal"
            axes.text(time_s + gap, place, f"{time_s:.2f} s", va="center", fontsize=9, weight=weight)
    for row, result in enumerate(results):
        words = f"{1 / result.warm_to_cold:.0f}× sooner than cold; {result.worst_warm.share:.1%} of the tokens from kvoffload"
        # Clear of its own number, and clear of the number below, in points.
        axes.annotate(
            words,
            (max(result.warm_ttft_s, result.device_ttft_s) + gap, row),
            (46, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=_WARM,
        )


def _draw_axes(axes: Any, results: Sequence[Measurement]) -> None:
    names = [f"{result.title}\n{result.prompt_tokens:,} tokens" for result in results]
    axes.set_yticks(range(len(results)), names, fontsize=9.5)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlim(0, _longest(results) * 1.09)
    axes.set_xlabel("time to first token, in seconds", fontsize=9.5)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=_INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_head(figure: Any, axes: Any, subtitle: str, height: float) -> None:
    left = 0.18 / _WIDTH_IN
    figure.text(
        left,
        1 - 0.36 / height,
        "Evicted prompts come back instead of being computed again",
        fontsize=15,
        weight="bold",
    )
    figure.text(left, 1 - 0.66 / height, subtitle, fontsize=9.5, color=_GREY)
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="center left",
        bbox_to_anchor=(left - 0.006, 1 - 1.0 / height),
        ncols=4,
        frameon=False,
        fontsize=9.5,
        handlelength=1.2,
        columnspacing=1.3,
        borderaxespad=0,
    )


def _longest(results: Sequence[Measurement]) -> float:
    return max(max(result.cold_ttft_s, result.warm_ttft_s, result.device_ttft_s) for result in results)
