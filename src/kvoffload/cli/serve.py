"""`kvoffload serve`: starts `vllm serve` with the connector wired in and steps aside."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kvoffload.errors import ConfigError


class ServeCommand(TyperCommand):
    """Tells people who give an option of the engine to `serve` itself where it belongs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look at the options before the first `--`, then parse."""
        ours = args[: args.index("--")] if "--" in args else args
        known = {name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        for argument in ours:
            name = argument.partition("=")[0]
            if name.startswith("-") and name not in known:
                raise ConfigError(
                    f"serve has no option {name}; the engine's own options go after `--`: kvoffload serve MODEL -- {name} …"
                )
        return super().parse_args(ctx, args)


def serve(
    model: Annotated[str, typer.Argument(help="Name or directory of the model, as vLLM takes it.")],
    engine_options: Annotated[
        list[str] | None, typer.Argument(metavar="-- VLLM OPTIONS", help="Passed on as they are.")
    ] = None,
    *,
    cpu_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Host memory for KV, in total per engine.")
    ] = "4GiB",
    fs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH[:CAP]",
            help="A directory below host memory that survives restarts, and its largest size; may be repeated.",
        ),
    ] = None,
    obj: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL[?OPTION=VALUE&…]",
            help="An object store below that, shared by a fleet: s3://bucket/prefix?cap=1TiB; may be repeated.",
        ),
    ] = None,
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
    from kvoffload.cli.launch import run_or_show  # noqa: PLC0415

    answers = False if offload_answers else None
    switches = {"cpu_bytes_to_use": cpu_bytes, "blocks_per_chunk": blocks_per_chunk}
    switches |= {"offload_prompt_only": answers, "eviction_policy": eviction_policy}
    run_or_show(model, switches, (fs or [], obj or []), (option or [], engine_options or []), dry_run=dry_run)
