"""The test's side of an engine: starts the child process, talks to it, and never waits without a deadline."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from tiny_models import TinyModel

HERE = Path(__file__).parent
START_DEADLINE_S = 300.0
DEADLINE_S = 180.0
LOG_TAIL_LINES = 80
INTERNAL_ERROR = "kvoffload: internal error"
_IDS = itertools.count()


class EngineError(Exception):
    """The engine said no, died or was too slow. The message ends with the tail of its log."""


@dataclass(frozen=True)
class Output:
    """One finished request."""

    id: str
    tokens: list[int]
    logprobs: list[dict[int, float]] | None
    prompt_logprobs: list[dict[int, float]] | None
    cached_tokens: int
    finish_reason: str
    samples: list[list[int]]
    """The tokens of all answers, if more than one was asked for; `tokens` and `logprobs` are the first one's."""
    kv_transfer_params: dict[str, Any] | None
    """What the connector tells the request's author."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is started with. Hashable by its text: engines are shared by equal settings."""

    model: TinyModel
    blocks: int
    tp: int = 1
    mode: str = "step"
    kvoffload: dict[str, Any] | None = None
    """`kv_connector_extra_config`; None: no connector."""
    connector: dict[str, Any] = field(default_factory=dict)
    """Further fields of `kv_transfer_config`."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    force_async_scheduling: bool = False

    @property
    def key(self) -> str:
        return json.dumps(self.as_json(), sort_keys=True)

    def as_json(self) -> dict[str, Any]:
        transfer = None
        if self.kvoffload is not None:
            transfer = {
                "kv_connector": "KvoffloadConnector",
                "kv_role": "kv_both",
                "kv_connector_module_path": "kvoffload.connectors.vllm.connector",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": self.kvoffload,
                **self.connector,
            }
            transfer = {name: value for name, value in transfer.items() if value is not None}
        return {
            "model": self.model.path,
            "dtype": self.model.dtype,
            "mode": self.mode,
            "kv_transfer_config": transfer,
            "force_async_scheduling": self.force_async_scheduling,
            "env": self.env,
            "engine_args": {
                "tensor_parallel_size": self.tp,
                "num_gpu_blocks_override": self.blocks,
                "max_model_len": 2048,
                "max_num_batched_tokens": 2048,
                "max_num_seqs": 16,
                **self.engine_args,
            },
        }

    def environment(self) -> dict[str, str]:
        """Ours, without whatever of it would change an engine, and with what the CPU build needs."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("VLLM_", "PYTEST_")) and name != "PYTHONHASHSEED"
        }
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": _thread_binding(self.tp),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if self.mode == "step" else "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.env,
        }


def _shared_files_of(process: psutil.Process) -> set[str]:
    try:
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split()[5] for line in lines if " /dev/shm/" in line and not line.endswith("(deleted)")}


def _thread_binding(tp: int) -> str:
    """The same cores for every engine.

    Not "auto": vLLM then keeps one more core free if there is a connector, and another number of threads sums floats
    in another order: outputs with and without the connector would differ in the last bits.
    """
    cores = sorted(os.sched_getaffinity(0))
    if tp == 1:
        return ",".join(str(core) for core in cores[:2])
    return "|".join(str(cores[rank % len(cores)]) for rank in range(tp))


class Engine:
    """A running engine in a process group of its own."""

    def __init__(self, settings: EngineSettings, log_path: Path) -> None:
        self.settings = settings
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._shared_files: set[str] = set()

    def start(self, deadline_s: float = START_DEADLINE_S) -> Engine:
        """Start and wait until it serves. Raises EngineError if it does not; nothing of it is left then."""
        ours, theirs = socket.socketpair()
        with theirs, self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(HERE / "engine_main.py"),
                    str(theirs.fileno()),
                    json.dumps(self.settings.as_json()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=self.settings.environment(),
            )
        self._connection = Connection(ours.detach())
        try:
            self._answer("start", deadline_s)
        except BaseException:
            self.kill()
            raise
        return self

    # -- commands ------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        one_by_one: bool = True,
        deadline_s: float = DEADLINE_S,
        **options: Any,
    ) -> list[Output]:
        """Run prompts, each alone in the engine or all at once; outputs in the order of the prompts.

        Between two that run alone the engine becomes idle, so that what the first one stores is there for the second.
        """
        if not one_by_one:
            ids = self.submit(prompts, **options)
            found = {output.id: output for output in self.collect(deadline_s)}
            return [found[request_id] for request_id in ids]
        return [
            self.generate([prompt], one_by_one=False, deadline_s=deadline_s, **options)[0]
            for prompt in prompts
        ]

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int = 8,
        logprobs: int | None = 10,
        **options: Any,
    ) -> list[str]:
        """Add requests (greedy, no early end); returns their ids."""
        requests = [
            {
                "id": f"request-{next(_IDS)}",
                "prompt": list(prompt),
                "max_tokens": max_tokens,
                "logprobs": logprobs,
                **options,
            }
            for prompt in prompts
        ]
        self._call("submit", requests=requests)
        return [request["id"] for request in requests]

    def collect(self, deadline_s: float = DEADLINE_S, *, until_idle: bool = True) -> list[Output]:
        """Run until all requests are finished (and nothing is in flight any more); outputs since the last call."""
        outputs = self._call("collect", wait_s=deadline_s + 10, deadline_s=deadline_s, until_idle=until_idle)
        return [Output(**output) for output in outputs]

    def beam_search(
        self, prompt: Sequence[int], *, beams: int, max_tokens: int
    ) -> list[tuple[list[int], float]]:
        """The best answers and their summed log-probabilities (mode "step")."""
        return self._call("beam_search", prompt=list(prompt), beams=beams, max_tokens=max_tokens)

    def step(self, times: int = 1) -> None:
        """Engine steps, one after the other (mode "step")."""
        self._call("step", times=times)

    def step_until(
        self, wanted: Callable[[dict[str, Any]], bool], what: str, limit: int = 2000
    ) -> dict[str, Any]:
        """Step until the state is as wanted."""
        for _ in range(limit):
            state = self.state()
            if wanted(state):
                return state
            self.step()
        raise EngineError(f"{limit} steps, but not {what}: {state}\n{self.log_tail()}")

    def abort(self, ids: Iterable[str]) -> None:
        """Abort requests."""
        self._call("abort", ids=list(ids))

    def reset(self, *, connector: bool, running: bool = False) -> bool:
        """Reset the prefix cache of the device, and ours if `connector`."""
        return self._call("reset", connector=connector, running=running)

    def metrics(self) -> dict[str, float]:
        """Counters (without _total) and gauges, summed over labels."""
        return self._call("metrics")

    def state(self) -> dict[str, Any]:
        """What scheduler and manager hold (mode "step"); checks the manager's invariants."""
        return self._call("state")

    def facts(self) -> dict[str, Any]:
        """What kind of engine this is (mode "step")."""
        return self._call("facts")

    # -- its life ------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process that the test talks to."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be talked to."""
        return self._process is not None and self._process.poll() is None and self._connection is not None

    def processes(self) -> list[psutil.Process]:
        """The engine's processes, its own first, then all that it started."""
        root = psutil.Process(self.pid)
        found = [root, *root.children(recursive=True)]
        self._shared_files |= {path for process in found for path in _shared_files_of(process)}
        return found

    @property
    def shared_files_left(self) -> set[str]:
        """Files in /dev/shm that its processes had mapped when `processes` was asked, and that are still there."""
        return {path for path in self._shared_files if Path(path).exists()}

    def stop(self, deadline_s: float = 60.0) -> None:
        """End in an orderly way; by force after the deadline. Idempotent."""
        if self.alive:
            with contextlib.suppress(EngineError, OSError):
                self._call("stop", wait_s=deadline_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=deadline_s)
        self.kill()

    def kill(self) -> None:
        """End every process of the engine at once, and remove what vLLM then leaves in /dev/shm. Idempotent."""
        if self._process is None:
            return
        processes = []
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = self.processes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(timeout=30)
        psutil.wait_procs(processes, timeout=30)
        for path in self.shared_files_left:
            assert "kvoffload" not in path, path
            Path(path).unlink(missing_ok=True)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- its log -------------------------------------------------------------------------------------------------

    def log(self) -> str:
        """All that it has written."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """The last lines of its log."""
        lines = self.log().splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"--- {self.log_path} ---", *lines])

    def assert_no_internal_error(self) -> None:
        """The guard at the edge hides our bugs from the engine; it must not hide them from the tests."""
        assert INTERNAL_ERROR not in self.log(), self.log_tail()

    # -- messages ------------------------------------------------------------------------------------------------

    def _call(self, name: str, *, wait_s: float = DEADLINE_S, **arguments: Any) -> Any:
        if not self.alive:
            raise EngineError(f"{name}: the engine is not running\n{self.log_tail()}")
        self._connection.send((name, arguments))
        return self._answer(name, wait_s)

    def _answer(self, name: str, deadline_s: float) -> Any:
        end = time.monotonic() + deadline_s
        try:
            while not self._connection.poll(0.2):
                if time.monotonic() > end:
                    self.kill()
                    raise EngineError(f"{name}: no answer within {deadline_s} s\n{self.log_tail()}")
            kind, value = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise EngineError(f"{name}: the engine has died\n{self.log_tail()}") from error
        if kind == "error":
            raise EngineError(f"{name}: {value}\n{self.log_tail()}")
        return value
