"""What the measurements say: the table, the verdict and the figures as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from kvoffload.cli.demo.measure import Measurement, Sample

_COLUMNS = (
    "prompt\ntokens",
    "from\ndevice\ncache",
    "from\nkvoffload",
    "share from\nkvoffload",
    "first token\ncold",
    "first token\ndevice\ncache",
    "first token\nkvoffload",
    "kvoffload\n/ cold",
    "kvoffload\n/ device\ncache",
    "answers\nequal",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the demo showed what it is there to show."""

    failures: tuple[str, ...]
    """What went wrong, a line each; empty if nothing did."""
    summary: str

    @property
    def passed(self) -> bool:
        """Whether nothing went wrong."""
        return not self.failures


def judge(results: Sequence[Measurement]) -> Verdict:
    """Correctness decides: equal answers, KV that really came back, figures that agree. Times are told, never judged."""
    failures: list[str] = []
    for result in results:
        if not result.answers_equal:
            failures.append(f"{result.title}: the answers differ")
        if result.warm.sources.kvoffload == 0:
            failures.append(f"{result.title}: nothing came from kvoffload in the second round")
        if not result.is_consistent:
            failures.append(f"{result.title}: the engine's counters and its account of the request disagree")
    return Verdict(tuple(failures), _summary(results))


def make_table(results: Sequence[Measurement], title: str) -> Table:
    """The measurements; token counts are those of the second round."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    table.add_column("prompt", vertical="bottom")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
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
                "prompt_tokens": result.warm.reply.prompt_tokens,
                "share_from_kvoffload": result.share,
                "warm_to_cold_ratio": result.warm_to_cold,
                "warm_to_device_ratio": result.warm_to_device,
                "answers_equal": result.answers_equal,
                "cold": _sample(result.cold),
                "device_cache": _sample(result.device),
                "warm": _sample(result.warm),
            }
            for result in results
        ],
    }


def _cells(result: Measurement) -> list[str]:
    warm = result.warm
    return [
        f"{warm.reply.prompt_tokens:,}",
        f"{warm.sources.device:,}",
        f"{warm.sources.kvoffload:,}",
        f"{result.share:.1%}",
        f"{result.cold.reply.ttft_s:.2f} s",
        f"{result.device.reply.ttft_s:.2f} s",
        f"{warm.reply.ttft_s:.2f} s",
        f"{result.warm_to_cold:.3f}",
        f"{result.warm_to_device:.2f}",
        "[green]yes[/]" if result.answers_equal else "[bold red]NO[/]",
    ]


def _summary(results: Sequence[Measurement]) -> str:
    least = min(result.share for result in results)
    slowest = max(result.warm_to_cold for result in results)
    worst = max(result.warm_to_device for result in results)
    return (
        f"at least {least:.1%} of every evicted prompt came back from kvoffload; the first token took at most "
        f"{slowest:.3f} of the cold time (1/{1 / slowest:.0f}) and {worst:.2f} times that of the device cache"
    )


def _sample(sample: Sample) -> dict[str, object]:
    return {
        "time_to_first_token_s": sample.reply.ttft_s,
        "total_s": sample.reply.total_s,
        "computed_tokens": sample.sources.computed,
        "device_cache_tokens": sample.sources.device,
        "kvoffload_tokens": sample.sources.kvoffload,
        "cached_tokens_by_usage": sample.reply.cached_tokens,
        "answer_tokens": sample.reply.answer_tokens,
        "answer": sample.reply.text,
    }
