"""The child process of the engine harness: starts one vLLM engine and obeys commands that come over a connection.

Two backends with the same commands. `StepBackend` drives the engine's core in this process, step by step: a test can
act exactly between two steps and look into the scheduler. `ServeBackend` is the layout of a server: the core runs in
a process of its own and steps by itself.

Started by `engine_process.py` as `python engine_main.py FD SETTINGS_JSON`; every answer is ("ok", value) or
("error", traceback).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    descriptor, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        backend = (StepBackend if settings["mode"] == "step" else ServeBackend)(settings)
    except BaseException:
        connection.send(("error", traceback.format_exc()))
        raise
    connection.send(("ok", os.getpid()))
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            name, arguments = "stop", {}
        try:
            answer = ("ok", getattr(backend, name)(**arguments))
        except BaseException:
            answer = ("error", traceback.format_exc())
        with contextlib.suppress(BrokenPipeError):
            connection.send(answer)
        if name == "stop":
            return


def _die_with_parent(parent: int) -> None:
    """A test run that was killed leaves no engine behind, not even one that is just starting."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _engine_args(settings: dict[str, Any]) -> dict[str, Any]:
    arguments = {
        "model": settings["model"],
        "dtype": settings["dtype"],
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "seed": 0,
        "max_logprobs": 20,
        "disable_log_stats": False,
        # As a server has it: even a single worker is a process of its own.
        "distributed_executor_backend": "mp",
    }
    if settings.get("kv_transfer_config"):
        from vllm.config import KVTransferConfig

        arguments["kv_transfer_config"] = KVTransferConfig(**settings["kv_transfer_config"])
    if events := settings["engine_args"].pop("kv_events_config", None):
        from vllm.config import KVEventsConfig

        arguments["kv_events_config"] = KVEventsConfig(**events)
    return {**arguments, **settings["engine_args"]}


def _sampling(request: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    others = {"id", "prompt", "kv_transfer_params", "cache_salt", "adapter", "embeds_seed"}
    options: dict[str, Any] = {"temperature": 0}
    options |= {key: value for key, value in request.items() if key not in others}
    if "kv_transfer_params" in request:
        options["extra_args"] = {"kv_transfer_params": request["kv_transfer_params"]}
    return SamplingParams(
        ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, **options
    )


def _prompt(request: dict[str, Any], hidden_size: int) -> dict[str, Any]:
    salt = {"cache_salt": request["cache_salt"]} if "cache_salt" in request else {}
    if "embeds_seed" in request:
        return {"prompt_embeds": _embeds(request["embeds_seed"], len(request["prompt"]), hidden_size), **salt}
    return {"prompt_token_ids": request["prompt"], **salt}


def _embeds(seed: int, tokens: int, hidden_size: int) -> Any:
    """Instead of tokens: random vectors of about the size of the tiny models' own."""
    import torch

    return 0.08 * torch.randn(tokens, hidden_size, generator=torch.Generator().manual_seed(seed))


def _adapter(request: dict[str, Any]) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(**request["adapter"]) if request.get("adapter") else None


def _plain_logprobs(items: Any) -> list[dict[int, float]] | None:
    if items is None:
        return None
    return [{} if item is None else {token: entry.logprob for token, entry in item.items()} for item in items]


def _plain(request_id: str, output: Any) -> dict[str, Any]:
    completions = sorted(output.outputs, key=lambda completion: completion.index)
    completion = completions[0]
    return {
        "id": request_id,
        "tokens": list(completion.token_ids),
        "samples": [list(completion.token_ids) for completion in completions],
        "logprobs": _plain_logprobs(completion.logprobs),
        "prompt_logprobs": _plain_logprobs(output.prompt_logprobs),
        "cached_tokens": output.num_cached_tokens or 0,
        "finish_reason": completion.finish_reason,
        "kv_transfer_params": output.kv_transfer_params,
    }


def _metrics() -> dict[str, float]:
    """All counters and gauges of this process: the sum over the labels, by name; those of tiers also one by one."""
    from prometheus_client import REGISTRY

    values: dict[str, float] = {}
    for family in REGISTRY.collect():
        for sample in family.samples:
            if family.type in {"counter", "gauge"} and not sample.name.endswith("_created"):
                name = sample.name.removesuffix("_total")
                values[name] = values.get(name, 0.0) + sample.value
                if name.startswith("kvoffload_tier_"):
                    own = {
                        k: v for k, v in sample.labels.items() if k in {"tier", "verb", "outcome", "event"}
                    }
                    series = f"{name}{{{','.join(f'{k}={v}' for k, v in sorted(own.items()))}}}"
                    values[series] = values.get(series, 0.0) + sample.value
    return values


def _allocation(kv_cache_config: Any) -> dict[str, Any]:
    """What the engine has allocated for KV, and what it says of each group's layers."""
    from vllm.v1.kv_cache_interface import iter_layer_specs

    groups = []
    for group in kv_cache_config.kv_cache_groups:
        spec = next(iter(iter_layer_specs(group.kv_cache_spec)))
        groups.append(
            {
                "kind": type(spec).__name__,
                "layers": len(group.layer_names),
                "tokens_per_block": spec.block_size,
                "window_tokens": getattr(spec, "sliding_window", None),
                "page_bytes": spec.real_page_size_bytes,
                "padded_page_bytes": spec.page_size_bytes,
            }
        )
    return {"bytes": kv_cache_config.kv_cache_tensors[0].size, "groups": groups}


def _force_async_scheduling() -> None:
    """The CPU platform switches async scheduling off; the scheduler's side of it runs here nevertheless."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def keep(cls: type, vllm_config: Any) -> None:
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(keep)


def _beam_search_over(engine: Any) -> Any:
    """The search of `vllm.LLM`, around an engine that is there already and has no tokenizer."""
    from types import SimpleNamespace

    from vllm import LLM
    from vllm.utils.counter import Counter

    search = LLM.__new__(LLM)
    search.llm_engine = engine
    search.model_config = engine.model_config
    search.request_counter = Counter()
    search.renderer = engine.renderer
    nobody = SimpleNamespace(eos_token_id=None, decode=lambda tokens, **_: "")
    search.renderer.get_tokenizer = lambda: nobody
    return search


class StepBackend:
    """The engine's core in this process: nothing moves unless a command makes it move."""

    def __init__(self, settings: dict[str, Any]) -> None:
        if settings.get("force_async_scheduling"):
            _force_async_scheduling()
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._engine = LLMEngine.from_engine_args(EngineArgs(**_engine_args(settings)))
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._unfinished: dict[str, None] = {}
        self._outputs: list[dict[str, Any]] = []

    def submit(self, requests: list[dict[str, Any]]) -> None:
        hidden_size = self._engine.model_config.get_hidden_size()
        for request in requests:
            self._engine.add_request(
                request["id"],
                _prompt(request, hidden_size),
                _sampling(request),
                lora_request=_adapter(request),
            )
            self._unfinished[request["id"]] = None

    def abort(self, ids: list[str]) -> None:
        self._engine.abort_request(ids)
        for request_id in ids:
            self._unfinished.pop(request_id, None)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            outputs = self._engine.step()
            if not outputs:
                # As the engine's own process does when nothing was computed: while it only waits for a transfer, others need
                # the core.
                time.sleep(0.001)
            for output in outputs:
                if output.finished:
                    self._outputs.append(_plain(output.request_id, output))
                    self._unfinished.pop(output.request_id, None)

    def collect(self, deadline_s: float, until_idle: bool = True) -> list[dict[str, Any]]:
        """Step until all requests are finished, and until nothing is in flight; the outputs since the last call."""
        end = time.monotonic() + deadline_s
        while self._unfinished or (until_idle and self._scheduler.has_requests()):
            if time.monotonic() > end:
                raise TimeoutError(f"not done after {deadline_s} s: {self.state()}")
            self.step()
        outputs, self._outputs = self._outputs, []
        return outputs

    def beam_search(self, prompt: list[int], beams: int, max_tokens: int) -> list[tuple[list[int], float]]:
        """vLLM's own search: the answers (token ids) with their summed log-probabilities, the best first."""
        from vllm.sampling_params import BeamSearchParams

        search = _beam_search_over(self._engine)
        parameters = BeamSearchParams(beam_width=beams, max_tokens=max_tokens, ignore_eos=True)
        (output,) = search.beam_search([{"prompt_token_ids": prompt}], parameters)
        return [(beam.tokens[len(prompt) :], beam.cum_logprob) for beam in output.sequences]

    def reset(self, connector: bool, running: bool = False) -> bool:
        return self._engine.reset_prefix_cache(reset_running_requests=running, reset_connector=connector)

    def metrics(self) -> dict[str, float]:
        return _metrics()

    def facts(self) -> dict[str, Any]:
        config = self._engine.vllm_config
        connector = type(self._scheduler.connector)
        return {
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "scheduler": type(self._scheduler).__name__,
            "connector": f"{connector.__module__}.{connector.__name__}",
            "num_blocks": self._scheduler.kv_cache_config.num_blocks,
            "allocation": _allocation(self._scheduler.kv_cache_config),
            "groups": [
                type(group.kv_cache_spec).__name__
                for group in self._scheduler.kv_cache_config.kv_cache_groups
            ],
        }

    def state(self) -> dict[str, Any]:
        """What the scheduler and our manager hold; raises AssertionError if an invariant of the manager is broken."""
        scheduler = self._scheduler
        state = {
            "unfinished": list(self._unfinished),
            "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            "running": len(scheduler.running),
            "requests": len(scheduler.requests),
            "statuses": sorted(request.status.name for request in scheduler.requests.values()),
        }
        side = getattr(scheduler.connector, "_scheduler", None)
        if side is not None:
            manager = side._manager
            manager.check()
            jobs = list(manager._ledger)
            state |= {
                "broken": side.broken,
                "loads": sum(job.direction.value == "load" for job in jobs),
                "stores": sum(job.direction.value == "store" for job in jobs),
                "pinned": sum(tier.pinned_count for tier in manager._tiers),
                "resident": sum(tier.ready_count for tier in manager._tiers),
                "known_requests": len(manager._requests) + len(side._computed),
            }
        return state

    def stop(self) -> None:
        self._engine.engine_core.shutdown()


class ServeBackend:
    """The engine as a server has it; requests run concurrently."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        arguments = AsyncEngineArgs(**_engine_args(settings))
        self._engine = self._call(lambda: AsyncLLM.from_engine_args(arguments))
        self._running: dict[str, Any] = {}

    def submit(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            self._running[request["id"]] = asyncio.run_coroutine_threadsafe(self._one(request), self._loop)

    def abort(self, ids: list[str]) -> None:
        self._await(self._engine.abort(ids))
        for request_id in ids:
            self._running.pop(request_id).cancel()

    def collect(self, deadline_s: float, until_idle: bool = True) -> list[dict[str, Any]]:
        running, self._running = self._running, {}
        end = time.monotonic() + deadline_s
        return [future.result(timeout=max(0.1, end - time.monotonic())) for future in running.values()]

    def reset(self, connector: bool, running: bool = False) -> bool:
        return self._await(self._engine.reset_prefix_cache(running, connector))

    def metrics(self) -> dict[str, float]:
        return _metrics()

    def stop(self) -> None:
        self._call(self._engine.shutdown)

    async def _one(self, request: dict[str, Any]) -> dict[str, Any]:
        last = None
        prompt = _prompt(request, self._engine.model_config.get_hidden_size())
        async for output in self._engine.generate(
            prompt, _sampling(request), request["id"], lora_request=_adapter(request)
        ):
            last = output
        return _plain(request["id"], last)

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=120)

    def _call(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(timeout=600)


if __name__ == "__main__":
    main()
