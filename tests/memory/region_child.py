"""A worker or attacher as a process of its own, for tests. Options: one JSON object as the only argument.

Says on stdout, one JSON object a line: {"event": "start"}, and after the first line on stdin "open" or "error". Obeys
further lines:
`put OFFSET VALUE`, `get OFFSET`, `fork` (a child that sleeps for ever; answers its pid), `close`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import kvoffload.memory.shared_region as module
from kvoffload.errors import KvError, RegionError
from kvoffload.memory.limits import THIS_MACHINE, LimitRoots
from kvoffload.memory.plan import plan_region
from kvoffload.memory.region_spec import MemoryKind, RegionSpec


def say(event: str, **values: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def spec_from(options: dict) -> RegionSpec:
    roots = options.get("limit_roots")
    kinds = options.get("memory_kinds")
    return RegionSpec(
        engine_id=options["engine_id"],
        plan=plan_region(options["budget_bytes"], options["row_bytes"]),
        world_size=options["world_size"],
        timeout_s=options["timeout_s"],
        socket_dir=Path(options["socket_dir"]),
        memory_kinds=tuple(map(MemoryKind, kinds)) if kinds else tuple(MemoryKind),
        limit_roots=LimitRoots(Path(roots[0]), Path(roots[1])) if roots else THIS_MACHINE,
    )


def sabotage(how: str) -> None:
    """Die or fail at a chosen moment of opening."""
    real_map = module.map_memory

    def map_memory(descriptor: int, spec: RegionSpec) -> object:
        if how == "die_while_others_knock":
            # The kernel lists the listener and one end of each connection that waits to be accepted.
            while Path("/proc/net/unix").read_text().count(spec.socket_name) < spec.world_size:
                time.sleep(0.01)
        if how in {"die_before_mapping", "die_while_others_knock"}:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "fail_mapping":
            raise RegionError("sabotage: no address space")
        mapping = real_map(descriptor, spec)
        if how == "die_after_mapping":
            os.kill(os.getpid(), signal.SIGKILL)
        return mapping

    module.map_memory = map_memory


def obey(region: module.SharedOffloadRegion, words: list[str]) -> None:
    match words:
        case ["put", offset, value]:
            region.array[int(offset)] = int(value)
            say("done")
        case ["get", offset]:
            say("value", value=int(region.array[int(offset)]))
        case ["fork"]:
            # The child answers: when it can, fork() has done in it all that it does.
            if os.fork() == 0:
                say("forked", pid=os.getpid())
                signal.pause()
        case ["close"]:
            region.close()
            say("done")
        case _:
            raise AssertionError(words)


def main() -> None:
    options = json.loads(sys.argv[1])
    say("start")
    sys.stdin.readline()
    if "sabotage" in options:
        sabotage(options["sabotage"])
    started_s = time.monotonic()
    try:
        spec = spec_from(options)
        if options["rank"] is None:
            region = module.SharedOffloadRegion.attach(spec, spec.timeout_s)
        else:
            region = module.SharedOffloadRegion.open(spec, options["rank"])
    except KvError as error:
        say("error", kind=type(error).__name__, message=str(error), seconds=time.monotonic() - started_s)
        return
    say("open", total_bytes=region.plan.total_bytes, mapped_bytes=region.array.nbytes)
    for line in sys.stdin:
        obey(region, line.split())


if __name__ == "__main__":
    main()
