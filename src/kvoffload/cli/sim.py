"""`kvoffload sim`: the command line of the simulator."""

from __future__ import annotations

from typing import Annotated

import typer


def sim(
    *,
    seed: Annotated[int, typer.Option(min=0, help="The seed; it decides everything.")] = 0,
    seeds: Annotated[
        str | None, typer.Option(metavar="A..B", help="Many seeds instead of one, both ends included.")
    ] = None,
    setup: Annotated[
        str | None, typer.Option(metavar="NAME", help="One setup only; without it, all of them.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Actions before everything has to drain (80).")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Print every event.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")
    ] = False,
) -> None:
    """The real manager and tiers under virtual time, against a model of the engine, with seeded faults and crashes.

    Every byte that the model of the engine reads is checked. Exit code 1 if anything was wrong: bytes, a hang, a leak,
    an exception; then the command that replays it is printed. Equal seeds have equal digests.
    """
    import logging  # noqa: PLC0415

    from kvoffload.sim.report import DEFAULT_STEPS, parse_seeds, setups_named, simulate  # noqa: PLC0415

    # What is given up or opened here happens on purpose; the event log has it.
    logging.getLogger("kvoffload").setLevel(logging.CRITICAL)
    numbers = range(seed, seed + 1) if seeds is None else parse_seeds(seeds)
    names = setups_named(setup)
    show = print if log and not json else None
    summary = simulate(names, numbers, steps or DEFAULT_STEPS, show)
    if json:
        print(summary.as_json())
    else:
        for line in summary.as_lines():
            print(line)
        if summary.failures:
            print(summary.failures[0].traceback)
        print(f"digest {summary.digest}")
    raise typer.Exit(1 if summary.failures else 0)
