"""What the measurements say, for people (the table) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from kvoffload.cli.demo.results import Comeback, Measurement, Sample, Verdict

_COLUMNS = (
    "prompt\ntokens",
    "from\ndevice",
    "from\nkvoffload",
    "\nshare",
    "cold\nTTFT",
    "device\nTTFT",
    "warm\nTTFT",
    "warm /\ncold",
    "warm /\ndevice",
    "same\nwords",
)
_OURS = ("from\nkvoffload", "warm\nTTFT")
_CAPTION = (
    "cold: computed. device: still in the device cache. warm: back from kvoffload.\n"
    "TTFT: seconds to first token. Times and ratios: medians of the rounds. Tokens:\n"
    "of the worst round. warm / device: of two requests that follow each other.\n"
    "same words: all answers to a prompt, cold and warm, equal word for word.\n"
)


_COMEBACK_COLUMNS = (
    "prompt\ntokens",
    "from\ndisk",
    "\nshare",
    "cold\nTTFT",
    "again\nTTFT",
    "again /\ncold",
    "same\nwords",
)
_COMEBACK_CAPTION = (
    "again: the first request for this prompt to a fresh engine, whose memory was empty.\n"
    "cold: from the first engine. same words: both answers equal word for word.\n"
)


def _empty_table(columns: Sequence[str], ours: Sequence[str], caption: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
        show_edge=False,
        header_style="bold",
        caption=caption,
        caption_justify="left",
    )
    table.add_column("\nprompt")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True, style="cyan" if name in ours else None)
    return table


def make_comeback_table(comebacks: Sequence[Comeback]) -> Table:
    """The second act, one row a prompt."""
    table = _empty_table(_COMEBACK_COLUMNS, ("from\ndisk", "again\nTTFT"), _COMEBACK_CAPTION)
    for result in comebacks:
        table.add_row(
            result.title,
            f"{result.again.reply.prompt_tokens:,}",
            f"{result.again.sources.kvoffload:,}",
            f"{result.again.share:.1%}",
            f"{result.cold.reply.ttft_s:.2f}",
            f"{result.again.reply.ttft_s:.2f}",
            f"{result.to_cold:.3f}",
            _yes_or_no(result.answers_equal),
        )
    return table


def make_table(results: Sequence[Measurement]) -> Table:
    """One row a prompt."""
    table = _empty_table(_COLUMNS, _OURS, _CAPTION)
    for result in results:
        table.add_row(result.title, *_cells(result))
    return table


def to_json(
    results: Sequence[Measurement], verdict: Verdict, setting: Mapping[str, object]
) -> dict[str, object]:
    """All figures; times in seconds, ratios and shares as plain numbers."""
    return {
        "setting": dict(setting),
        "passed": verdict.passed,
        "failures": list(verdict.failures),
        "summary": verdict.summary,
        "prompts": [
            {
                "title": result.title,
                "prompt_tokens": result.prompt_tokens,
                "share_from_kvoffload": result.worst_warm.share,
                "cold_ttft_s": result.cold_ttft_s,
                "warm_ttft_s": result.warm_ttft_s,
                "device_ttft_s": result.device_ttft_s,
                "warm_to_cold_ratio": result.warm_to_cold,
                "warm_to_device_ratio": result.warm_to_device,
                "answers_equal": result.answers_equal,
                "cold": _sample(result.cold),
                "warm": [_sample(sample) for sample in result.warm],
                "device": [_sample(sample) for sample in result.device],
            }
            for result in results
        ],
    }


def _cells(result: Measurement) -> list[str]:
    sources = result.worst_warm.sources
    return [
        f"{result.prompt_tokens:,}",
        f"{sources.device:,}",
        f"{sources.kvoffload:,}",
        f"{result.worst_warm.share:.1%}",
        f"{result.cold_ttft_s:.2f}",
        f"{result.device_ttft_s:.2f}",
        f"{result.warm_ttft_s:.2f}",
        f"{result.warm_to_cold:.3f}",
        f"{result.warm_to_device:.2f}",
        _yes_or_no(result.answers_equal),
    ]


def _yes_or_no(value: bool) -> str:
    return "[green]yes[/]" if value else "[bold red]NO[/]"


def comebacks_to_json(comebacks: Sequence[Comeback], verdict: Verdict) -> dict[str, object]:
    """All figures of the second act."""
    return {
        "passed": verdict.passed,
        "failures": list(verdict.failures),
        "summary": verdict.summary,
        "prompts": [
            {
                "title": result.title,
                "prompt_tokens": result.again.reply.prompt_tokens,
                "share_from_disk": result.again.share,
                "again_to_cold_ratio": result.to_cold,
                "answers_equal": result.answers_equal,
                "again": _sample(result.again),
            }
            for result in comebacks
        ],
    }


def _sample(sample: Sample) -> dict[str, object]:
    return {
        "ttft_s": sample.reply.ttft_s,
        "total_s": sample.reply.total_s,
        "computed_tokens": sample.sources.computed,
        "device_tokens": sample.sources.device,
        "kvoffload_tokens": sample.sources.kvoffload,
        "cached_tokens_by_usage": sample.reply.cached_tokens,
        "answer_tokens": sample.reply.answer_tokens,
        "answer": sample.reply.text,
    }
