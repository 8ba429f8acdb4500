"""What `kvoffload serve` does once its command line is read: check, build the engine's command, become the engine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from kvoffload.cli.engine_command import EngineMissingError, engine_arguments, find_launcher
from kvoffload.cli.fs_option import make_directories, parse_fs, tier_switches
from kvoffload.cli.obj_option import check_stores, parse_obj
from kvoffload.cli.preflight import check_torchvision
from kvoffload.cli.serve_options import check_options, parse_assignments

_SWITCHES = {
    "cpu_bytes_to_use": "--cpu-bytes",
    "blocks_per_chunk": "--blocks-per-chunk",
    "offload_prompt_only": "--offload-answers",
    "eviction_policy": "--eviction-policy",
}


def run_or_show(
    model: str,
    switches: Mapping[str, object],
    below: tuple[Sequence[str], Sequence[str]],
    rest: tuple[Sequence[str], Sequence[str]],
    *,
    dry_run: bool,
) -> None:
    """Become the engine, or print its command.

    Args:
        model: Name or directory of the model.
        switches: Options of the connector that have a switch of their own; None: not given.
        below: What stood behind each `--fs`, and behind each `--obj`: directories are nearer than object stores.
        rest: The connector's other options (`KEY=VALUE`), and vLLM's own.
        dry_run: Only print.

    Raises:
        KvError: an option is not valid, or the engine cannot be started.
    """
    directories, stores = parse_fs(below[0]), parse_obj(below[1])
    given = {name: value for name, value in switches.items() if value is not None}
    arguments = engine_arguments_of(model, given | tier_switches([*directories, *stores]), *rest)
    if dry_run:
        print(show_command(arguments))
        return
    make_directories(directories)
    check_stores(stores)
    start_engine(arguments)


def engine_arguments_of(
    model: str, switches: Mapping[str, object], assignments: Sequence[str], engine_options: Sequence[str]
) -> list[str]:
    """The engine's arguments for what was said on our command line.

    Args:
        model: Name or directory of the model.
        switches: Options of the connector that have a switch of their own.
        assignments: The others, as `KEY=VALUE`.
        engine_options: vLLM's own.

    Raises:
        ConfigError: an option is not valid.
    """
    taken = dict(_SWITCHES)
    if "secondary_tiers" in switches:
        taken |= {"secondary_tiers": "--fs or --obj", "spec_name": "--fs or --obj"}
    options = check_options({**switches, **parse_assignments(assignments, taken)}, os.environ)
    return engine_arguments(model, options, engine_options)


def show_command(arguments: Sequence[str]) -> str:
    """The whole command, quoted for a shell; also on a machine that could not run it."""
    try:
        launcher = find_launcher()
    except EngineMissingError:
        launcher = ["vllm", "serve"]
    return shlex.join([*launcher, *arguments])


def start_engine(arguments: Sequence[str]) -> NoReturn:
    """Become the engine: signals and exit code are its own from here on.

    Raises:
        EngineMissingError: there is none.
        BrokenEnvironmentError: it could not start.
    """
    command = [*find_launcher(), *arguments]
    check_torchvision()
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606
