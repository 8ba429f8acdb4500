"""The demo from beginning to end: model, engine, measurements, table, picture, figures."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kvoffload import __version__
from kvoffload.cli.demo.client import Client
from kvoffload.cli.demo.engine import EngineProcess, engine_environment, free_port, serve_command
from kvoffload.cli.demo.measure import Experiment
from kvoffload.cli.demo.model import MODEL_NAME, DemoModel, prepare_model
from kvoffload.cli.demo.picture import draw
from kvoffload.cli.demo.progress import Progress
from kvoffload.cli.demo.prompts import SUBJECTS, WARM_UP, Messages, Prompt, build_prompt, load_topics
from kvoffload.cli.demo.report import comebacks_to_json, make_comeback_table, make_table, to_json
from kvoffload.cli.demo.results import Comeback, Measurement, judge, judge_comebacks
from kvoffload.cli.engine_command import find_launcher
from kvoffload.errors import KvError

_MAX_MODEL_TOKENS = 4096
_DEVICE_CACHE_TOKENS = 4480
"""Holds the longest prompt and its answer, but by far not the whole conversation."""
_SERVED_NAME = "smollm2"
_STORE_CAP = "2GiB"


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
    with TemporaryDirectory(prefix="store-", dir=setting.out_dir) as store:
        stage = Stage(setting, progress, model, Path(store))
        with stage.engine("engine.log") as experiment:
            prompts = stage.write_prompts()
            facts = {**_facts(setting, model), "vllm": stage.client.version()}
            results = experiment.run(prompts.measured, prompts.warm_up, setting.rounds)
        progress.say(
            "The engine has been stopped, and its memory is gone. A fresh one starts on the same directory."
        )
        with stage.engine("engine-2.log") as experiment:
            comebacks = experiment.run_again(prompts.measured, prompts.warm_up, results)
    return _show(results, comebacks, facts, setting.out_dir, progress)


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is sent."""

    warm_up: Prompt
    measured: Sequence[Prompt]


class Stage:
    """Where the acts take place: one engine at a time, always with the same configuration and directory.

    Args:
        setting: What the user chose.
        progress: Told what happens.
        model: What is served.
        store: Directory of the fs tier.
    """

    def __init__(self, setting: DemoSetting, progress: Progress, model: DemoModel, store: Path) -> None:
        self._setting = setting
        self._progress = progress
        port = free_port()
        self.client = Client(port)
        self._command = serve_command(serve_arguments(model, port, setting.cpu_bytes, store))

    @contextmanager
    def engine(self, log_name: str) -> Iterator[Experiment]:
        """Start an engine; it is stopped, or has failed, when the block is left."""
        log_path = self._setting.out_dir / log_name
        engine = EngineProcess(self._command, engine_environment(os.environ), log_path)
        with _running(engine, self._progress):
            with self._progress.stage("Starting the engine"):
                engine.wait_ready(self.client, self._setting.start_timeout_s)
            yield Experiment(self.client, _SERVED_NAME, engine.explain_failure, self._progress)

    def write_prompts(self) -> Prompts:
        """Long prompts, as the engine counts tokens."""
        topics = load_topics()

        def count(messages: Messages) -> int:
            return self.client.count_tokens(_SERVED_NAME, messages)

        with self._progress.stage("Writing long prompts from the Python reference"):
            warm_up, *prompts = (build_prompt(subject, topics, count) for subject in (WARM_UP, *SUBJECTS))
        total = sum(prompt.tokens for prompt in prompts)
        self._progress.say(
            f"  {len(prompts)} prompts of {min(p.tokens for p in prompts):,} to {max(p.tokens for p in prompts):,} tokens, "
            f"{total:,} in all; the device cache holds {_DEVICE_CACHE_TOKENS:,}"
        )
        return Prompts(warm_up, prompts)


@contextmanager
def _running(engine: EngineProcess, progress: Progress) -> Iterator[None]:
    with closing(engine):
        engine.start()
        try:
            yield
        except BaseException:
            progress.say("Stopping the engine …")
            raise


def serve_arguments(model: DemoModel, port: int, cpu_bytes: str, store: Path) -> list[str]:
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
    return [str(model.path), "--cpu-bytes", cpu_bytes, "--fs", f"{store}:{_STORE_CAP}", "--", *listed, *flags]


def _show(
    results: Sequence[Measurement],
    comebacks: Sequence[Comeback],
    facts: dict[str, object],
    out_dir: Path,
    progress: Progress,
) -> bool:
    verdicts = (judge(results), judge_comebacks(comebacks))
    figures = out_dir / "demo.json"
    content = to_json(results, verdicts[0], facts)
    content["after_restart"] = comebacks_to_json(comebacks, verdicts[1])
    figures.write_text(json.dumps(content, indent=2) + "\n")
    for table, verdict in zip((make_table(results), make_comeback_table(comebacks)), verdicts, strict=True):
        progress.console.print()
        progress.console.print(table)
        for failure in verdict.failures:
            progress.console.print(f"[bold red]✗[/] {failure}", highlight=False)
        mark = "[bold green]✓[/]" if verdict.passed else "[bold red]✗ FAILED[/];"
        progress.console.print(f"{mark} {verdict.summary}", highlight=False, soft_wrap=True)
    paths = [*_draw(results, comebacks, facts, out_dir, progress), figures, out_dir / "engine.log"]
    progress.say("Written: " + ", ".join(str(path) for path in paths))
    return all(verdict.passed for verdict in verdicts)


def _draw(
    results: Sequence[Measurement],
    comebacks: Sequence[Comeback],
    facts: dict[str, object],
    out_dir: Path,
    progress: Progress,
) -> list[Path]:
    equal = all(r.answers_equal for r in results) and all(r.answers_equal for r in comebacks)
    answers = "all answers equal, word for word" if equal else "ANSWERS DIFFER"
    subtitle = (
        f"{facts['model']} on vLLM {facts['vllm']}, {facts['cpu_count']} CPU cores; {len(results)} prompts taking turns in a "
        f"device cache of {_DEVICE_CACHE_TOKENS:,} tokens; {answers}"
    )
    try:
        draw(results, comebacks, subtitle, out_dir / "demo.svg")
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
