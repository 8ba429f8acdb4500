"""Many seeds over many setups, and what to say about them: counts, digests, and how a failure is replayed."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import xxhash

from kvoffload.errors import ConfigError
from kvoffload.sim.runner import Result, Simulation
from kvoffload.sim.setups import SETUPS

DEFAULT_STEPS = 80


@dataclass(frozen=True)
class Failure:
    """A seed that showed something wrong."""

    setup: str
    seed: int
    steps: int
    error: str
    """One line."""
    traceback: str

    @property
    def replay(self) -> str:
        """The command that does it again."""
        steps = "" if self.steps == DEFAULT_STEPS else f" --steps {self.steps}"
        return f"kvoffload sim --seed {self.seed} --setup {self.setup!r}{steps}"

    def __str__(self) -> str:
        return f"setup {self.setup!r}, seed {self.seed}: {self.error}; replay: {self.replay}"


@dataclass
class Summary:
    """What several runs have shown."""

    results: dict[str, list[Result]] = field(default_factory=dict)
    """By setup."""
    failures: list[Failure] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def digest(self) -> str:
        """Of all runs that passed: equal digests mean that every event was the same."""
        text = "\n".join(
            f"{setup} {result.seed} {result.digest}"
            for setup, results in self.results.items()
            for result in results
        )
        return xxhash.xxh3_128_hexdigest(text.encode())

    def as_lines(self) -> list[str]:
        """For people: one line a setup, then what went wrong."""
        lines = []
        for setup, results in self.results.items():
            failed = sum(failure.setup == setup for failure in self.failures)
            events = sum(result.events for result in results)
            virtual_s = sum(result.virtual_s for result in results)
            lines.append(
                f"{setup}: {len(results)} passed, {failed} failed, {events} events, {virtual_s:.0f} s of virtual time"
            )
        lines += [f"FAILED {failure}" for failure in self.failures]
        return lines

    def as_json(self) -> str:
        """For machines: one object."""
        return json.dumps(
            {
                "digest": self.digest,
                "failures": [
                    {"setup": f.setup, "seed": f.seed, "error": f.error, "replay": f.replay}
                    for f in self.failures
                ],
                "runs": [
                    {"setup": setup, "seed": result.seed, "digest": result.digest, "events": result.events}
                    for setup, results in self.results.items()
                    for result in results
                ],
                "seen": dict(sorted(self.seen.items())),
            }
        )


def setups_named(name: str | None) -> Mapping[str, object]:
    """The setup of this name, all of them for None. Raises ConfigError for a name that is unknown."""
    if name is None:
        return SETUPS
    if name not in SETUPS:
        raise ConfigError(f"sim: setup {name!r} is unknown; valid: {', '.join(map(repr, SETUPS))}")
    return {name: SETUPS[name]}


def parse_seeds(text: str) -> range:
    """`A..B`, both included. Raises ConfigError."""
    first, _, last = text.partition("..")
    if not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
        raise ConfigError(f"sim: --seeds {text!r} must be like 0..99, the last not below the first")
    return range(int(first), int(last) + 1)


def simulate(
    names: Iterable[str], seeds: Iterable[int], steps: int, show: Callable[[str], None] | None = None
) -> Summary:
    """Run every seed with every setup; a failure is written down, and the rest goes on.

    Args:
        names: Of setups.
        seeds: Seeds.
        steps: Actions of a run, before it drains.
        show: Is given every line of the event logs.
    """
    summary = Summary()
    seeds = list(seeds)
    for name in names:
        results = summary.results.setdefault(name, [])
        for seed in seeds:
            try:
                result = Simulation(SETUPS[name], seed, show).run(steps)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is what the simulation looks for)
                text = traceback.format_exc()
                summary.failures.append(Failure(name, seed, steps, f"{type(error).__name__}: {error}", text))
                continue
            results.append(result)
            summary.seen += result.seen
    return summary
