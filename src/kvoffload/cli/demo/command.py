"""`kvoffload demo`: prepares a model, starts an engine, measures, and shows what came out."""

from __future__ import annotations

import json
import os
import platform
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvoffload import __version__
from kvoffload.errors import KvError

if TYPE_CHECKING:
    from kvoffload.cli.demo.client import Client
    from kvoffload.cli.demo.engine import EngineProcess
    from kvoffload.cli.demo.measure import Measurement
    from kvoffload.cli.demo.model import DemoModel
    from kvoffload.cli.demo.progress import Progress
    from kvoffload.cli.demo.prompts import Messages

_MAX_MODEL_TOKENS = 4096
_DEVICE_CACHE_TOKENS = 4480
"""Holds the longest prompt and its answer, and less than two of any."""
_SERVED_NAME = "smollm2"


@dataclass(frozen=True, slots=True)
class DemoSetting:
    """What the user may choose."""

    out_dir: Path
    cache_dir: Path
    cpu_bytes: str
    start_timeout_s: float


def demo(
    out_dir: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the picture, the figures and the log go.")
    ] = Path("demo-out"),
    cache_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the prepared model is kept for the next time.")
    ] = None,
    cpu_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Host memory that kvoffload may use.")
    ] = "1GiB",
    start_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the engine may take to start.")
    ] = 300.0,
) -> None:
    """A real engine gets its evicted KV back: long prompts twice, measured, with a table and a picture.

    Exit code 1 if an answer differs, or if a prompt of the second round got nothing from kvoffload.
    """
    from kvoffload.cli.demo.progress import Progress, make_console  # noqa: PLC0415

    setting = DemoSetting(out_dir, cache_dir or _default_cache_dir(), cpu_bytes, start_timeout)
    progress = Progress(make_console())
    with _signals_end_the_demo():
        passed = run_demo(setting, progress)
    raise typer.Exit(0 if passed else 1)


def run_demo(setting: DemoSetting, progress: Progress) -> bool:
    """The whole demo; returns whether it showed what it is there to show."""
    from kvoffload.cli.demo.client import Client  # noqa: PLC0415
    from kvoffload.cli.demo.engine import EngineProcess, engine_environment, free_port  # noqa: PLC0415
    from kvoffload.cli.demo.model import prepare_model  # noqa: PLC0415
    from kvoffload.cli.engine_command import find_launcher  # noqa: PLC0415

    find_launcher()  # complains before anything is downloaded
    _make_out_dir(setting.out_dir)
    model = prepare_model(setting.cache_dir, progress)
    port = free_port()
    client = Client(port)
    arguments = serve_arguments(model, port, setting.cpu_bytes)
    log_path = setting.out_dir / "engine.log"
    with closing(EngineProcess(arguments, engine_environment(os.environ), log_path)) as engine:
        engine.start()
        with progress.stage("Starting the engine"):
            engine.wait_ready(client, setting.start_timeout_s)
        facts = {**_facts(setting, model), "vllm": client.version()}
        results = _measure(engine, client, progress)
    return _show(results, facts, setting.out_dir, progress)


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


def _measure(engine: EngineProcess, client: Client, progress: Progress) -> list[Measurement]:
    from kvoffload.cli.demo.measure import Experiment  # noqa: PLC0415
    from kvoffload.cli.demo.prompts import SUBJECTS, WARM_UP, build_prompt, load_topics  # noqa: PLC0415

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
    return Experiment(client, _SERVED_NAME, engine.explain_failure).run(prompts, warm_up, progress)


def _show(
    results: Sequence[Measurement], facts: dict[str, object], out_dir: Path, progress: Progress
) -> bool:
    from kvoffload.cli.demo.report import judge, make_table, to_json  # noqa: PLC0415

    verdict = judge(results)
    figures = out_dir / "demo.json"
    figures.write_text(json.dumps(to_json(results, verdict, facts), indent=2) + "\n")
    console = progress.console
    console.print()
    console.print(make_table(results, "Second round: every prompt had been evicted from the device cache"))
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
    from kvoffload.cli.demo.picture import draw  # noqa: PLC0415

    subtitle = (
        f"{facts['model']} on vLLM {facts['vllm']}, {facts['cpu_count']} CPU cores; {len(results)} prompts took turns in a "
        f"device cache of {_DEVICE_CACHE_TOKENS:,} tokens; answers compared word for word"
    )
    try:
        draw(results, subtitle, out_dir / "demo.svg")
    except ImportError:
        progress.say("[yellow]no picture: matplotlib is missing[/]; pip install 'kvoffload\\[demo]'")
        return []
    return [out_dir / "demo.svg"]


def _facts(setting: DemoSetting, model: DemoModel) -> dict[str, object]:
    from kvoffload.cli.demo.model import MODEL_NAME  # noqa: PLC0415

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
    }


def _make_out_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "engine.log").touch()
    except OSError as error:
        raise KvError(f"cannot write to {path} ({error.strerror}); give another --out") from None


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvoffload" / "demo"


@contextmanager
def _signals_end_the_demo() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that the engine is stopped on the way."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
