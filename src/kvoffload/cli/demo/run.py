"""The demo from beginning to end: model, engine, measurements, table, picture, figures."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvoffload import __version__
from kvoffload.cli.demo.client import Client
from kvoffload.cli.demo.engine import EngineProcess, engine_environment, free_port, serve_command
from kvoffload.cli.demo.measure import Experiment
from kvoffload.cli.demo.model import MODEL_NAME, DemoModel, prepare_model
from kvoffload.cli.demo.picture import draw
from kvoffload.cli.demo.progress import Progress
from kvoffload.cli.demo.prompts import SUBJECTS, WARM_UP, Messages, build_prompt, load_topics
from kvoffload.cli.demo.report import make_table, to_json
from kvoffload.cli.demo.results import Measurement, judge
from kvoffload.cli.engine_command import find_launcher
from kvoffload.errors import KvError

_MAX_MODEL_TOKENS = 4096
_DEVICE_CACHE_TOKENS = 4480
"""Holds the longest prompt and its answer, but by far not the whole conversation."""
_SERVED_NAME = "smollm2"


@dataclass(frozen=True, slots=True)
class DemoSetting:
    """What the user may choose."""

    out_dir: Path
    cache_dir: Path
    cpu_bytes: str
    start_timeout_s: float
    rounds: int


def run_demo(setting: DemoSetting, progress: Progress) -> bool:
    """The whole demo; returns whether it showed what it is there to show."""
    find_launcher()  # complains before anything is downloaded
    _make_out_dir(setting.out_dir)
    model = prepare_model(setting.cache_dir, progress)
    port = free_port()
    client = Client(port)
    command = serve_command(serve_arguments(model, port, setting.cpu_bytes))
    log_path = setting.out_dir / "engine.log"
    engine = EngineProcess(command, engine_environment(os.environ), log_path)
    with _running(engine, progress):
        with progress.stage("Starting the engine"):
            engine.wait_ready(client, setting.start_timeout_s)
        facts = {**_facts(setting, model), "vllm": client.version()}
        results = _measure(engine, client, progress, setting.rounds)
    return _show(results, facts, setting.out_dir, progress)


@contextmanager
def _running(engine: EngineProcess, progress: Progress) -> Iterator[None]:
    with closing(engine):
        engine.start()
        try:
            yield
        except BaseException:
            progress.say("Stopping the engine …")
            raise


def serve_arguments(model: DemoModel, port: int, cpu_bytes: str) -> list[str]:
    """What stands behind `kvoffload serve`: an engine whose device cache is too small for the conversation."""
    engine_options = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--served-model-name": _SERVED_NAME,
        # A cold prompt is computed in large batches, a cached one in a single small one: their sums are rounded
        # differently. In bfloat16 that is enough to turn a close decision between two words; in float32 it is not.
        "--dtype": "float32",
        "--max-model-len": str(_MAX_MODEL_TOKENS),
        "--kv-cache-memory-bytes": str(_DEVICE_CACHE_TOKENS * model.kv_bytes_per_token),
        "--max-num-seqs": "4",
    }
    listed = [text for pair in engine_options.items() for text in pair]
    flags = ["--enforce-eager", "--enable-prompt-tokens-details"]
    return [str(model.path), "--cpu-bytes", cpu_bytes, "--", *listed, *flags]


def _measure(engine: EngineProcess, client: Client, progress: Progress, rounds: int) -> list[Measurement]:
    topics = load_topics()

    def count(messages: Messages) -> int:
        return client.count_tokens(_SERVED_NAME, messages)

    with progress.stage("Writing long prompts from the Python reference"):
        warm_up, *prompts = (build_prompt(subject, topics, count) for subject in (WARM_UP, *SUBJECTS))
    total = sum(prompt.tokens for prompt in prompts)
    progress.say(
        f"  {len(prompts)} prompts of {min(p.tokens for p in prompts):,} to {max(p.tokens for p in prompts):,} tokens, "
        f"{total:,} in all; the device cache holds {_DEVICE_CACHE_TOKENS:,}"
    )
    experiment = Experiment(client, _SERVED_NAME, engine.explain_failure, progress)
    return experiment.run(prompts, warm_up, rounds)


def _show(
    results: Sequence[Measurement], facts: dict[str, object], out_dir: Path, progress: Progress
) -> bool:
    verdict = judge(results)
    figures = out_dir / "demo.json"
    figures.write_text(json.dumps(to_json(results, verdict, facts), indent=2) + "\n")
    console = progress.console
    console.print()
    console.print(make_table(results))
    for failure in verdict.failures:
        console.print(f"[bold red]✗[/] {failure}", highlight=False)
    mark = "[bold green]✓[/]" if verdict.passed else "[bold red]✗ FAILED[/];"
    console.print(f"{mark} {verdict.summary}", highlight=False, soft_wrap=True)
    paths = [*_draw(results, facts, out_dir, progress), figures, out_dir / "engine.log"]
    progress.say("Written: " + ", ".join(str(path) for path in paths))
    return verdict.passed


def _draw(
    results: Sequence[Measurement], facts: dict[str, object], out_dir: Path, progress: Progress
) -> list[Path]:
    equal = all(result.answers_equal for result in results)
    answers = "all answers equal, word for word" if equal else "ANSWERS DIFFER"
    subtitle = (
        f"{facts['model']} on vLLM {facts['vllm']}, {facts['cpu_count']} CPU cores; {len(results)} prompts taking turns in a "
        f"device cache of {_DEVICE_CACHE_TOKENS:,} tokens; {answers}"
    )
    try:
        draw(results, subtitle, out_dir / "demo.svg")
    except ImportError:
        progress.say("[yellow]no picture: matplotlib is missing[/]; pip install 'kvoffload\\[demo]'")
        return []
    return [out_dir / "demo.svg"]


def _facts(setting: DemoSetting, model: DemoModel) -> dict[str, object]:
    return {
        "kvoffload": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "model": MODEL_NAME,
        "dtype": "float32",
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "device_cache_tokens": _DEVICE_CACHE_TOKENS,
        "cpu_bytes": setting.cpu_bytes,
        "rounds": setting.rounds,
    }


def _make_out_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "engine.log").touch()
    except OSError as error:
        raise KvError(f"cannot write to {path} ({error.strerror}); give another --out") from None
