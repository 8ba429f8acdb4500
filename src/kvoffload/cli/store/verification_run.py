"""What `kvoffload verify` does."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvoffload.cli.store.output import looking, print_json, print_table, progress, say, size_text, warn
from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.cleaning import Cleaner
from kvoffload.tiers.fs.collecting import Bounds, Kind, plan_temps
from kvoffload.tiers.fs.mending import mend_namespace
from kvoffload.tiers.fs.store_root import NamespaceInfo, NamespaceState, RecordState, StoreRoot, describe
from kvoffload.tiers.fs.survey import NamespaceSurvey, Survey
from kvoffload.tiers.fs.tidying import count, make_plan
from kvoffload.tiers.fs.verifying import Throttle, Verification, Verifier

_MEBIBYTE = 1024**2
_UNSOUND = (
    NamespaceState.UNDESCRIBED,
    NamespaceState.DAMAGED,
    NamespaceState.MISPLACED,
    NamespaceState.UNREADABLE,
)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify."""

    fix: bool
    limit_mib_s: float | None
    threads: int
    as_json: bool


@dataclass(slots=True)
class _Report:
    """Everything that was found and done."""

    survey: Survey
    chunks: Verification = field(default_factory=Verification)
    unsound: list[NamespaceInfo] = field(default_factory=list)
    """Namespaces whose description does not fit, after mending."""
    mended: list[str] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)
    orphans: int = 0
    swept: int = 0
    record_fault: str | None = None
    is_record_set: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many faults are left."""
        chunks = sum(not one.is_removed for one in self.chunks.findings)
        record = self.record_fault is not None and not self.is_record_set
        return chunks + len(self.unsound) + len(self.problems) + record


def run_verify(store: StoreRoot, namespace: str | None, options: VerifyOptions) -> bool:
    """Verify, and mend if that was asked for; returns whether no damage is left."""
    chosen = store.select(namespace)
    accounts = Accounts(store)
    if options.fix:
        accounts.open()
    try:
        report = _verify(store, chosen, accounts, options)
    finally:
        if options.fix:
            accounts.close()
    if accounts.problem:
        report.problems.append(accounts.problem)
    if options.as_json:
        print_json(_as_json(store, report, options))
    else:
        _print(report, options)
    return report.left == 0


def _verify(
    store: StoreRoot, chosen: tuple[NamespaceInfo, ...], accounts: Accounts, options: VerifyOptions
) -> _Report:
    with looking(hidden=options.as_json) as accounts.seen:
        plan = make_plan(store, chosen, accounts, Bounds())
    report = _Report(plan.survey)
    report.record_fault = _record_fault(store, plan.survey, plan.observer.live_writers - {accounts.here.text})
    if options.fix:
        chosen = tuple(_mended(store, info, accounts, report) for info in chosen)
    cleaner = Cleaner(store, accounts) if options.fix else None
    total = sum(one.chunk_bytes for one in plan.survey.namespaces)
    with progress("verifying", total, hidden=options.as_json) as advance:
        throttle = Throttle(None if options.limit_mib_s is None else options.limit_mib_s * _MEBIBYTE)
        verifier = Verifier(
            store, threads=options.threads, throttle=throttle, cleaner=cleaner, on_checked=advance
        )
        report.chunks = verifier.run(chosen)
    held = {one.info.name: one for one in plan.survey.namespaces}
    for info in chosen:
        # One that was mended is ours now.
        held[info.name].info = info
    report.unsound = [info for info in chosen if _is_unsound(info, held[info.name])]
    report.newer = [info.name for info in chosen if info.state is NamespaceState.NEWER]
    temps = list(plan_temps(plan.survey))
    report.orphans = len(temps)
    if cleaner is not None:
        cleaner.run(temps)
        report.swept = cleaner.cleaned.removed[Kind.TEMP]
        report.problems.extend(cleaner.cleaned.failed)
        # Last, so that it counts what is left. A walk that could not read all knows too little to set anything.
        with looking(hidden=options.as_json) as accounts.seen:
            counted = count(store, accounts)
        report.is_record_set = not counted.errors and accounts.problem is None
    report.problems.extend(dict.fromkeys([*plan.survey.errors, *report.chunks.errors]))
    return report


def _mended(store: StoreRoot, info: NamespaceInfo, accounts: Accounts, report: _Report) -> NamespaceInfo:
    try:
        if not mend_namespace(store.disk, info, accounts.here):
            return info
    except OSError as error:
        report.problems.append(f"{info.path}: namespace.json cannot be written: {error.strerror or error}")
        return info
    report.mended.append(info.name)
    return describe(store.disk, store.path, info.name)


def _is_unsound(info: NamespaceInfo, held: NamespaceSurvey) -> bool:
    """A directory that merely is called like a namespace is no damage."""
    return info.state in _UNSOUND and (info.state is not NamespaceState.UNDESCRIBED or held.chunks > 0)


def _record_fault(store: StoreRoot, survey: Survey, others: frozenset[str]) -> str | None:
    """What is wrong with the usage record; None if nothing is, or it cannot be told while engines write."""
    record = store.read_record()
    if record.state in (RecordState.DAMAGED, RecordState.UNREADABLE):
        return str(record.state.value)
    usage = record.usage
    if usage is None or usage.used_bytes is None or others or not survey.is_whole_store or survey.errors:
        return None
    missing = survey.counted_bytes - usage.used_bytes
    return f"says {size_text(missing)} less than there is" if missing > 0 else None


def _as_json(store: StoreRoot, report: _Report, options: VerifyOptions) -> dict[str, object]:
    chunks = report.chunks
    return {
        "root": store.path,
        "fix": options.fix,
        "is_sound": report.left == 0,
        "chunks": chunks.chunks,
        "bytes": chunks.size_bytes,
        "chunks_of_later_formats": chunks.newer,
        "damage": {
            kind: {"chunks": count_, "bytes": size, "removed": removed}
            for kind, (count_, size, removed) in chunks.by_kind().items()
        },
        "findings": [
            {
                "path": one.path,
                "bytes": one.size_bytes,
                "kind": one.kind,
                "detail": one.detail,
                "removed": one.is_removed,
            }
            for one in chunks.findings
        ],
        "unsound_namespaces": [{"name": info.name, "state": info.state.value} for info in report.unsound],
        "mended_namespaces": report.mended,
        "namespaces_of_later_formats": report.newer,
        "orphan_temp_files": report.orphans,
        "swept_temp_files": report.swept,
        "record_fault": report.record_fault,
        "record_set_right": report.is_record_set,
        "problems": report.problems,
    }


def _print(report: _Report, options: VerifyOptions) -> None:
    chunks = report.chunks
    say(f"{chunks.chunks:,} chunks read ({size_text(chunks.size_bytes)})")
    if chunks.findings:
        rows = [
            [kind, f"{number:,}", size_text(size), f"{removed:,}"]
            for kind, (number, size, removed) in chunks.by_kind().items()
        ]
        print_table(("damage", "chunks", "bytes", "removed"), rows, right=("chunks", "bytes", "removed"))
        for one in chunks.findings:
            say(f"  {one.kind}{f' ({one.detail})' if one.detail else ''}: {one.path}")
    for line in _other_lines(report):
        say(line)
    for problem in report.problems:
        warn(problem)
    if report.left:
        hint = "" if options.fix else "; --fix mends what can be mended"
        say(f"damage left: {report.left}{hint}")
    else:
        say("sound" if not chunks.findings else "mended")


def _other_lines(report: _Report) -> list[str]:
    lines = [f"namespace.json written anew: {name}" for name in report.mended]
    lines += [f"namespace {info.name}: {info.state.value}; left as it is" for info in report.unsound]
    lines += [f"namespace {name}: of a later format; not looked at" for name in report.newer]
    if report.chunks.newer:
        lines.append(f"{report.chunks.newer:,} chunks of later formats: left alone, not damage")
    if report.orphans:
        lines.append(f"temporary files of dead writers: {report.orphans:,}, removed {report.swept:,}")
    if report.record_fault:
        done = "set right" if report.is_record_set else "not set right"
        lines.append(f"usage record: {report.record_fault}; {done}")
    return lines
