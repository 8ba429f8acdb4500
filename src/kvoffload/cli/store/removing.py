"""What gc and purge have in common: carrying a plan out, and telling what was or would be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.cli.store.output import print_json, progress, say, seconds_of, size_text, time_text, warn
from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.cleaning import Cleaned, Cleaner
from kvoffload.tiers.fs.collecting import Kind, Removal, totals
from kvoffload.tiers.fs.store_root import StoreRoot
from kvoffload.tiers.fs.tidying import Plan

_WORDS = {
    Kind.CHUNK: ("chunk", "chunks"),
    Kind.TEMP: ("temporary file of a dead writer", "temporary files of dead writers"),
    Kind.DIRECTORY: ("empty directory", "empty directories"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan and what became of it."""

    store: StoreRoot
    plan: Plan
    cleaned: Cleaned | None
    """None: it was only said what would be done."""
    accounts: Accounts

    @property
    def problems(self) -> list[str]:
        """What could not be read or removed."""
        return [*self.plan.survey.errors, *(self.cleaned.failed if self.cleaned else [])]

    @property
    def planned_left_bytes(self) -> int:
        """What a bound of gc holds for, if everything goes as planned."""
        return self.plan.survey.bounded_bytes - sum(one.size_bytes for one in self.plan.removals)

    @property
    def left_bytes(self) -> int:
        """The same after the plan; what engines have stored meanwhile is not in it."""
        if self.cleaned is None:
            return self.planned_left_bytes
        return self.plan.survey.bounded_bytes - self.cleaned.freed_bytes - self.cleaned.gone_bytes


def carry_out(cleaner: Cleaner, removals: Sequence[Removal], title: str, *, as_json: bool) -> Cleaned:
    """Remove what is planned, with a bar."""
    total = sum(one.size_bytes for one in removals)
    with progress(title, total, hidden=as_json) as advance:
        return cleaner.run(removals, lambda one: advance(one.size_bytes))


def tell(outcome: Outcome, *, as_json: bool, is_dry: bool, more: dict[str, object] | None = None) -> None:
    """Print the result on stdout; what went wrong also on stderr."""
    if as_json:
        print_json({**_as_json(outcome, is_dry=is_dry), **(more or {})})
        return
    if is_dry:
        for one in outcome.plan.removals:
            used = f", last used {time_text(one.used_ns)}" if one.kind is Kind.CHUNK else ""
            say(f"would remove {one.path} ({size_text(one.size_bytes)}: {one.reason.value}{used})")
    say(_summary(outcome, is_dry=is_dry))
    for info in outcome.plan.left_alone:
        say(f"left alone: the chunks of {info.name} ({info.state.value})")
    for line in outcome.problems:
        warn(line)
    if outcome.accounts.problem:
        warn(outcome.accounts.problem)


def _summary(outcome: Outcome, *, is_dry: bool) -> str:
    planned = totals(outcome.plan.removals)
    cleaned = outcome.cleaned
    counts = cleaned.removed if cleaned else {kind: planned[kind][0] for kind in Kind}
    freed = cleaned.freed_bytes if cleaned else sum(size for _, size in planned.values())
    what = ", ".join(f"{counts[kind]:,} {_WORDS[kind][counts[kind] != 1]}" for kind in Kind if counts[kind])
    verb = "would remove" if is_dry else "removed"
    spared = f"; {cleaned.spared} spared: used or changed meanwhile" if cleaned and cleaned.spared else ""
    left = size_text(outcome.left_bytes)
    return f"{verb} {what or 'nothing'}: {size_text(freed)}; {left} {'would be' if is_dry else 'are'} left{spared}"


def _as_json(outcome: Outcome, *, is_dry: bool) -> dict[str, object]:
    cleaned = outcome.cleaned
    planned = totals(outcome.plan.removals)
    found: dict[str, object] = {
        "root": outcome.store.path,
        "dry_run": is_dry,
        "planned": {kind.value: {"count": planned[kind][0], "bytes": planned[kind][1]} for kind in Kind},
        "removed": {kind.value: cleaned.removed[kind] if cleaned else 0 for kind in Kind},
        "freed_bytes": cleaned.freed_bytes if cleaned else 0,
        "spared": cleaned.spared if cleaned else 0,
        "left_bytes": outcome.left_bytes,
        "left_alone": [info.name for info in outcome.plan.left_alone],
        "problems": outcome.problems,
        "record_problem": outcome.accounts.problem,
    }
    if is_dry:
        found["removals"] = [
            {
                "path": one.path,
                "bytes": one.size_bytes,
                "kind": one.kind.value,
                "reason": one.reason.value,
                "used_s": seconds_of(one.used_ns) if one.kind is not Kind.DIRECTORY else None,
            }
            for one in outcome.plan.removals
        ]
    return found
