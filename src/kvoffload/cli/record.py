"""`kvoffload record`: a trace from the KV events of a running engine, which needs no connector of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def record(
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="The trace; must not be there yet.")],
    *,
    events: Annotated[
        str,
        typer.Option(metavar="ENDPOINT", help="Where the engine publishes: tcp://HOST:PORT or ipc://PATH."),
    ] = "tcp://127.0.0.1:5557",
    listen: Annotated[
        bool,
        typer.Option(
            "--listen", help="Listen there: the engine's own endpoint is a host, so that it connects."
        ),
    ] = False,
    replay: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Its replay_endpoint: lost messages are asked for again."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="45s, 10m, 2h. Default: until Ctrl-C, SIGTERM or --max-bytes."),
    ] = None,
    max_bytes: Annotated[str, typer.Option(metavar="SIZE", help="The file does not grow beyond.")] = "256MiB",
    wait: Annotated[str, typer.Option(metavar="TIME", help="For an engine to answer.")] = "30s",
) -> None:
    """Record what a running vLLM computes, for `kvoffload simulate` and `plan --trace`: how large should a host tier be?

    The engine needs no connector, only its own events: vllm serve MODEL --kv-events-config
    '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'.

    The trace has the blocks that missed the device's cache, which is what a tier below would be asked for. It cannot show hits in
    the device's cache, nor requests, nor where a prompt ends and its answer begins; where kvoffload runs already, `record_dir`
    records more. No tokens are written, and names of blocks are hashes under a secret that is forgotten.
    """
    from kvoffload.cli.recording_run import options_of, run_recording  # noqa: PLC0415

    run_recording(options_of(out, (events, listen, replay), duration, max_bytes, wait))
