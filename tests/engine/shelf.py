"""Engines that tests share, the kinds of them, and what the same prompts give without the connector.

At most two engines live at a time: one under test, and one without the connector for comparison.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine_process import Engine, EngineSettings, Output
from expect import BFLOAT16_TP, SAME_COMPUTATION, SAME_MATHS
from faulty_spec import Fault, write_faults
from small_disk import SmallDisk
from tiny_models import MAKERS, TinyModel

BLOCKS = 21
"""Small on purpose: 20 blocks of 128 tokens, since the engine keeps one for itself. Two prompts of 1,100 tokens fit."""
BASELINE_BLOCKS = {
    "llama": 120,
    "gemma3": 160,
    "lfm2": 160,
    "qwen3-next": 160,
    "deepseek": 700,
    "gemma3-270m": 160,
}
GROUPS_BLOCKS = 37
"""For models with several groups, which share the blocks: one prompt of 1,100 tokens fits, and its windows or states."""
HOST_BYTES = "64MiB"
TRANSFER_TIMEOUT_S = 6.0
PATIENT = {"transfer_timeout_s": 60.0}
"""For kinds on which nothing is held up on purpose: on a busy machine a step takes longer than the above."""


GROUPS_STEPS = {"max_num_batched_tokens": 512}
"""Several steps a prompt: windows move, and states are left behind."""
PLAIN_ROTARY = {"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}
"""This build's own kernel turns query and key by the wrong angles where they are views of a joint projection: by others
under another tensor-parallel size, and by others for other numbers of tokens in a step."""
MODEL_ARGS: dict[str, dict[str, Any]] = {
    "gemma3": GROUPS_STEPS,
    "gemma3-270m": GROUPS_STEPS,
    "lfm2": {**GROUPS_STEPS, **PLAIN_ROTARY},
    "qwen3-next": GROUPS_STEPS,
    "deepseek": PLAIN_ROTARY,
}
"""What engines of a model are started with, those for comparison, too: where steps end changes how states are rounded."""


class Shelf:
    """Makes models and engines when they are first asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._models: dict[str, TinyModel] = {}
        self._subject: Subject | None = None
        self._baselines: dict[str, list[Output]] = {}
        self._baseline_engine: Engine | None = None
        self._started = 0

    def model(self, name: str) -> TinyModel:
        """The tiny model of that name."""
        if name not in self._models:
            self._models[name] = MAKERS[name](self._root)
        return self._models[name]

    def subject(self, kind: str) -> Subject:
        """The engine of that kind, running and idle."""
        if self._subject is not None and (self._subject.kind != kind or not self._subject.engine.alive):
            self.drop()
        if self._subject is None:
            self._subject = KINDS[kind](self, self._new_folder(kind))
            self._subject.engine.start()
        return self._subject

    def drop(self) -> None:
        """End the engine under test; the next test gets a new one."""
        if self._subject is not None:
            self._subject.close()
            self._subject = None

    def engine(self, settings: EngineSettings, label: str) -> Engine:
        """An engine of its own for one test, not started. The shared one is ended, so that there is room."""
        self.drop()
        return Engine(settings, self._new_folder(label) / "engine.log")

    def baseline(
        self, model: str, tp: int, prompts: Sequence[Sequence[int]], *, warm: bool = False, **options: Any
    ) -> list[Output]:
        """What an engine without the connector gives for each prompt, alone in the engine.

        Args:
            model: Name of the model.
            tp: Tensor parallel size.
            prompts: Token ids.
            warm: The prompt's full blocks are in the engine's own cache already.
            options: As for `Engine.generate`.
        """
        return [self._baseline_of(model, tp, list(prompt), warm, options) for prompt in prompts]

    def logs(self) -> list[tuple[str, str]]:
        """Names and last lines of the logs of the engines that live."""
        engines = [self._subject.engine if self._subject else None, self._baseline_engine]
        return [(str(engine.log_path), engine.log_tail()) for engine in engines if engine is not None]

    def close(self) -> None:
        """End all engines."""
        self.drop()
        if self._baseline_engine is not None:
            self._baseline_engine.stop()
            self._baseline_engine = None

    def plain_engine(self, model: str, tp: int) -> Engine:
        """The engine without the connector, with an empty cache."""
        engine = self._baseline(model, tp)
        assert engine.reset(connector=False)
        return engine

    def _baseline_of(
        self, model: str, tp: int, prompt: list[int], warm: bool, options: dict[str, Any]
    ) -> Output:
        key = json.dumps([model, tp, prompt, warm, options], sort_keys=True)
        if key not in self._baselines:
            engine = self.plain_engine(model, tp)
            outputs = engine.generate([prompt] * (2 if warm else 1), **options)
            # Of several answers the later ones find the prompt of the first.
            assert outputs[0].cached_tokens == 0 or options.get("n", 1) > 1
            assert not warm or outputs[1].cached_tokens > 0, "nothing came from the engine's own cache"
            self._baselines[key] = [outputs[-1]]
        return self._baselines[key][0]

    def _baseline(self, model: str, tp: int) -> Engine:
        settings = EngineSettings(
            model=self.model(model),
            blocks=BASELINE_BLOCKS[model],
            tp=tp,
            engine_args=MODEL_ARGS.get(model, {}),
        )
        engine = self._baseline_engine
        if engine is None or not engine.alive or engine.settings.key != settings.key:
            if engine is not None:
                engine.stop()
            self._baseline_engine = Engine(settings, self._new_folder("baseline") / "engine.log").start()
        return self._baseline_engine

    def _new_folder(self, label: str) -> Path:
        self._started += 1
        folder = self._root / f"{self._started:02}-{label}"
        folder.mkdir()
        return folder


class Subject:
    """An engine with the connector, its faults, and what its outputs must be."""

    def __init__(
        self,
        shelf: Shelf,
        folder: Path,
        *,
        kind: str,
        model: str = "llama",
        blocks: int = BLOCKS,
        cold_tolerance: float = SAME_COMPUTATION,
        warm_tolerance: float = SAME_COMPUTATION,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.kind = kind
        self._shelf = shelf
        self._model_name = model
        self.model = shelf.model(model)
        self.cold_tolerance = cold_tolerance
        self.warm_tolerance = warm_tolerance
        self._folder = folder
        self._faults_path = folder / "faults.json"
        self._journal_path = folder / "journal.jsonl"
        extra: dict[str, Any] = {
            "cpu_bytes_to_use": HOST_BYTES,
            "transfer_timeout_s": TRANSFER_TIMEOUT_S,
            "spec_name": "FaultySpec",
            "spec_module_path": "faulty_spec",
            "spec_options": {"control_path": str(self._faults_path), "journal_path": str(self._journal_path)},
            **(options or {}),
        }
        extra = {name: value for name, value in extra.items() if value is not None}
        self.usable_blocks = blocks - 1
        self.blocks_per_chunk: int = extra.get("blocks_per_chunk", 1)
        self.tokens_per_chunk = self.model.tokens_per_block * self.blocks_per_chunk
        engine_args = {**MODEL_ARGS.get(model, {}), **settings.pop("engine_args", {})}
        self.settings = EngineSettings(
            model=self.model, blocks=blocks, kvoffload=extra, engine_args=engine_args, **settings
        )
        self.engine = Engine(self.settings, folder / "engine.log")
        self.tp = self.engine.settings.tp
        self._steps = self.engine.settings.mode == "step"

    # -- what must come out --------------------------------------------------------------------------------------

    def cold(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[Output]:
        """What an engine without the connector computes for the prompts."""
        return self._shelf.baseline(self._model_name, self.tp, prompts, **options)

    def warm(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[Output]:
        """What it computes if the full blocks of a prompt are in its own cache: the same shapes as after a load."""
        return self._shelf.baseline(self._model_name, self.tp, prompts, warm=True, **options)

    def plain_engine(self) -> Engine:
        """The engine that computes it, with an empty cache."""
        return self._shelf.plain_engine(self._model_name, self.tp)

    # -- faults --------------------------------------------------------------------------------------------------

    def faults(self, *, load: Fault | None = None, store: Fault | None = None) -> None:
        """From the next job on these faults hold, and no others."""
        faults = {"load": load, "store": store}
        write_faults(self._faults_path, {name: fault for name, fault in faults.items() if fault is not None})

    def journal(self, direction: str, event: str = "begin") -> list[dict[str, Any]]:
        """What the copiers have written of their jobs, of all workers, in order."""
        if not self._journal_path.exists():
            return []
        entries = [json.loads(line) for line in self._journal_path.read_text().splitlines()]
        return [entry for entry in entries if entry["direction"] == direction and entry["event"] == event]

    # -- its life ------------------------------------------------------------------------------------------------

    def restart(self, *, kill: bool = False, **settings: Any) -> None:
        """End the engine (without warning, if `kill`) and start another one of the same settings, except `settings`."""
        if kill:
            self.engine.kill()
        else:
            self.engine.stop()
        self.settings = dataclasses.replace(self.settings, **settings)
        self.tp = self.settings.tp
        self.engine = Engine(self.settings, self._folder / "engine.log").start()

    def close(self) -> None:
        """End it for good."""
        self.engine.stop()

    # -- between tests -------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Empty all caches and journals."""
        self.faults()
        assert self.engine.reset(connector=True)
        self._journal_path.unlink(missing_ok=True)

    def evict_device(self) -> None:
        """Empty the engine's own prefix cache, not ours."""
        assert self.engine.reset(connector=False)

    def assert_idle(self) -> None:
        """After any test: nothing in flight, nothing pinned, no request remembered, no block lost, no internal error."""
        self.faults()
        self.engine.collect()
        if self._steps:
            state = self.engine.state()
            assert not state["broken"], self.engine.log_tail()
            left = {name: state[name] for name in ("requests", "loads", "stores", "pinned", "known_requests")}
            assert not any(left.values()), left
            assert state["free_blocks"] == self.usable_blocks, state
        self._assert_nothing_pinned()
        self.engine.assert_no_internal_error()

    def _assert_nothing_pinned(self) -> None:
        # A server's counters arrive a moment after its answers.
        end = time.monotonic() + 10
        while (pinned := self.engine.metrics().get("kvoffload_pinned_chunks", 0)) and time.monotonic() < end:
            time.sleep(0.05)
        assert pinned == 0

    def counted(self) -> str:
        """All metrics since the engine's start that are not zero, a line each; for the report of a failed test."""
        if not self.engine.alive:
            return "the engine has ended"
        metrics = self.engine.metrics().items()
        return "\n".join(f"{name} {value:g}" for name, value in sorted(metrics) if value)

    @contextmanager
    def counting(self) -> Iterator[dict[str, float]]:
        """How much every metric has grown within the block; filled in at its end."""
        grown: dict[str, float] = {}
        before = self.engine.metrics()
        yield grown
        if not self._steps:
            time.sleep(0.5)
        after = self.engine.metrics()
        grown.update({name: value - before.get(name, 0) for name, value in after.items()})


class FsSubject(Subject):
    """An engine with two directories below the host: a large one, and (where it can be made) a disk that is full."""

    def __init__(
        self,
        shelf: Shelf,
        folder: Path,
        *,
        canonical: bool = False,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.root = folder / "store"
        self.small_disk = SmallDisk(folder / "small", "8m")
        tiers = [{"type": "fs", "root_dir": str(self.root), "max_bytes": "1GiB", "min_free_bytes": 0}]
        if self.small_disk.exists:
            # No cap: it is the disk that says no.
            root_dir = str(self.small_disk.path / "store")
            tiers.append({"type": "fs", "name": "small", "root_dir": root_dir, "min_free_bytes": 0})
        options = {
            "spec_name": "TieringOffloadingSpec",
            "spec_module_path": None,
            "spec_options": None,
            "secondary_tiers": tiers,
            # What is loaded shall not depend on how fast this machine is today.
            "load_policy": "always",
            **PATIENT,
            "canonical_layout": canonical,
            "record_dir": str(folder / "traces"),
            **(options or {}),
        }
        super().__init__(shelf, folder, options=options, **settings)

    def recorded_trace(self) -> Path:
        """What the engine has recorded since its last start."""
        return max((self._folder / "traces").iterdir(), key=lambda path: path.stat().st_mtime)

    def chunk_files(self) -> list[Path]:
        """What is in the large directory, in no order."""
        return [path for path in self.root.rglob("*.kv") if path.is_file()]

    def close(self) -> None:
        """See Subject."""
        super().close()
        self.small_disk.close()


def _kind(name: str, **options: Any) -> Callable[[Shelf, Path], Subject]:
    return lambda shelf, folder: Subject(shelf, folder, kind=name, **options)


def _drafts_kind(
    name: str, speculation: Callable[[Shelf], dict[str, Any]]
) -> Callable[[Shelf, Path], Subject]:
    """Speculative decoding over a directory; answers are stored, too."""
    return lambda shelf, folder: FsSubject(
        shelf,
        folder,
        kind=name,
        # A prompt's chunks, which hold both models' layers, end in one step, and an eighth of the host may wait for a tier.
        options={"offload_prompt_only": False, "cpu_bytes_to_use": "256MiB"},
        engine_args={"speculative_config": {"num_speculative_tokens": 3, **speculation(shelf)}},
        cold_tolerance=SAME_MATHS,
        warm_tolerance=SAME_MATHS,
    )


def _groups_kind(name: str, **options: Any) -> Callable[[Shelf, Path], Subject]:
    """A model with several groups over a directory."""
    return lambda shelf, folder: FsSubject(shelf, folder, kind=name, blocks=GROUPS_BLOCKS, **options)


KINDS: dict[str, Callable[[Shelf, Path], Subject]] = {
    "tp1": _kind("tp1"),
    "async": _kind("async", force_async_scheduling=True),
    "small-steps": _kind(
        "small-steps",
        # Chunks of two blocks, and a prompt needs several steps; answers are stored, too.
        options={"blocks_per_chunk": 2, "offload_prompt_only": False},
        engine_args={"max_num_batched_tokens": 192, "max_num_seqs": 8},
        cold_tolerance=SAME_MATHS,
        warm_tolerance=SAME_MATHS,
    ),
    "drafts": _drafts_kind(
        "drafts", lambda _: {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    ),
    "draft-model": _drafts_kind(
        "draft-model", lambda shelf: {"method": "draft_model", "model": shelf.model("draft").path}
    ),
    "identities": lambda shelf, folder: FsSubject(
        shelf,
        folder,
        kind="identities",
        engine_args={
            "enable_lora": True,
            "max_loras": 2,
            "max_cpu_loras": 4,
            "max_lora_rank": 8,
            "enable_prompt_embeds": True,
        },
    ),
    "no-device-cache": _kind("no-device-cache", engine_args={"enable_prefix_caching": False}),
    "serve": _kind(
        "serve",
        mode="serve",
        # As a user starts it: the connector by its name alone, the engine's default for failed loads.
        connector={"kv_connector_module_path": None, "kv_load_failure_policy": None},
    ),
    "fs": lambda shelf, folder: FsSubject(shelf, folder, kind="fs"),
    "fs-canonical": lambda shelf, folder: FsSubject(shelf, folder, kind="fs-canonical", canonical=True),
    "tp2": _kind("tp2", tp=2),
    "fs-tp2": lambda shelf, folder: FsSubject(shelf, folder, kind="fs-tp2", tp=2),
    "gemma3-faults": _kind("gemma3-faults", model="gemma3", blocks=GROUPS_BLOCKS),
    "gemma3-async": _kind(
        "gemma3-async",
        model="gemma3",
        options=PATIENT,
        blocks=GROUPS_BLOCKS,
        # Running ahead takes more blocks for windows: fewer are left for the longest prompt.
        engine_args={"max_model_len": 1536},
        force_async_scheduling=True,
    ),
    # Others of several groups have the direct layout.
    "gemma3": _groups_kind("gemma3", model="gemma3", canonical=True),
    "lfm2": _groups_kind("lfm2", model="lfm2"),
    "lfm2-canonical": _groups_kind("lfm2-canonical", model="lfm2", canonical=True),
    "qwen3-next": _groups_kind("qwen3-next", model="qwen3-next"),
    "qwen3-next-canonical": _groups_kind(
        "qwen3-next-canonical", model="qwen3-next", canonical=True, cold_tolerance=BFLOAT16_TP
    ),
    # Kept once whatever the options say. Two of its prompts fit.
    "deepseek": lambda shelf, folder: FsSubject(
        shelf,
        folder,
        kind="deepseek",
        model="deepseek",
        blocks=160,
        # A prompt ends as many small chunks at once, and what waits for a tier may take an eighth of the host.
        options={"cpu_bytes_to_use": "256MiB"},
    ),
    "gemma3-270m": lambda shelf, folder: FsSubject(
        shelf,
        folder,
        kind="gemma3-270m",
        model="gemma3-270m",
        # Six groups: a prompt takes 40 blocks, so one fits and two do not.
        blocks=61,
        options={"cpu_bytes_to_use": "256MiB"},
        engine_args={"max_model_len": 1280},
    ),
}
"""Kinds of engines under test. Tests are sorted so that each kind is started once, in this order: those that are compared
with the same engine stand together."""
