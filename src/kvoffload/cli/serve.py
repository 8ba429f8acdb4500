"""`kvoffload serve`: starts `vllm serve` with the connector wired in and steps aside."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kvoffload.errors import ConfigError

_SWITCHES = {
    "cpu_bytes_to_use": "--cpu-bytes",
    "blocks_per_chunk": "--blocks-per-chunk",
    "offload_prompt_only": "--offload-answers",
    "eviction_policy": "--eviction-policy",
}


class ServeCommand(TyperCommand):
    """Tells people who give an option of the engine to `serve` itself where it belongs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look at the options before the first `--`, then parse."""
        ours = args[: args.index("--")] if "--" in args else args
        known = {name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        for argument in ours:
            name = argument.partition("=")[0]
            if name.startswith("--") and name not in known:
                raise ConfigError(
                    f"serve has no option {name}; the engine's own options go after `--`: kvoffload serve MODEL -- {name} …"
                )
        return super().parse_args(ctx, args)


def serve(
    model: Annotated[str, typer.Argument(help="Name or directory of the model, as vLLM takes it.")],
    engine_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM OPTIONS]", help="Passed on as they are.")
    ] = None,
    *,
    cpu_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Host memory for KV, in total per engine.")
    ] = "4GiB",
    blocks_per_chunk: Annotated[
        int | None, typer.Option(metavar="N", help="Engine blocks that are kept together.")
    ] = None,
    offload_answers: Annotated[
        bool, typer.Option("--offload-answers", help="Keep the KV of answers, too, not of prompts alone.")
    ] = False,
    eviction_policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who leaves first when host memory is full.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Any other option of kv_connector_extra_config; may be repeated."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and exit.")] = False,
) -> None:
    """Start `vllm serve MODEL` with KV offloading. vLLM's own options go after `--`.

    The engine takes the place of this process: its signals and its exit code are the engine's own.
    """
    switches: dict[str, object] = {"cpu_bytes_to_use": cpu_bytes}
    if blocks_per_chunk is not None:
        switches["blocks_per_chunk"] = blocks_per_chunk
    if offload_answers:
        switches["offload_prompt_only"] = False
    if eviction_policy is not None:
        switches["eviction_policy"] = eviction_policy
    argv = _engine_argv(model, switches, option or [], engine_options or [])
    if dry_run:
        print(shlex.join(argv))
        return
    _replace_this_process(argv)


def _engine_argv(
    model: str, switches: dict[str, object], assignments: list[str], engine_options: list[str]
) -> list[str]:
    from kvoffload.cli.engine_command import engine_argv, find_launcher  # noqa: PLC0415
    from kvoffload.cli.serve_options import check_options, parse_assignments  # noqa: PLC0415

    options = check_options({**switches, **parse_assignments(assignments, _SWITCHES)}, os.environ)
    return engine_argv(find_launcher(), model, options, engine_options)


def _replace_this_process(argv: list[str]) -> None:
    from kvoffload.cli.preflight import check_torchvision  # noqa: PLC0415

    check_torchvision()
    sys.stdout.flush()
    os.execv(argv[0], argv)  # noqa: S606
