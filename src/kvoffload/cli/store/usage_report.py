"""What `kvoffload du` prints."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvoffload.cli.store.describing import namespace_json
from kvoffload.cli.store.output import looking, print_json, print_table, say, size_text, time_text, warn
from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.directory import DIRECTORY_BYTES, Leaf
from kvoffload.tiers.fs.store_root import NamespaceInfo, Record, StoreRoot, collect_errors
from kvoffload.tiers.fs.survey import (
    NamespaceSurvey,
    Survey,
    foreign_in_leaf,
    foreign_in_root,
    survey_store,
)

_NANOSECONDS = 1_000_000_000


@dataclass(slots=True)
class _Foreign:
    """Bytes that are not ours, by namespace; "" is the root."""

    entries: int = 0
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, where: str, size_bytes: int) -> None:
        self.entries += 1
        self.sizes[where] = self.sizes.get(where, 0) + size_bytes


def report_usage(store: StoreRoot, cap_bytes: int | None, *, as_json: bool) -> None:
    """Walk the store and say where its bytes are."""
    foreign, errors = _Foreign(), []  # type: _Foreign, list[str]
    # Before the walk: what engines store meanwhile can then only make the record look too low, never too high.
    record = store.read_record()

    def look(info: NamespaceInfo, leaf: Leaf) -> None:
        if leaf.foreign:
            for entry in foreign_in_leaf(store.disk, info, leaf, collect_errors(errors)):
                foreign.add(info.name, entry.size_bytes)

    accounts = Accounts(store)
    with looking(hidden=as_json) as accounts.seen:
        survey = survey_store(store, store.namespaces, accounts.observer(), look)
    for entry in foreign_in_root(store, collect_errors(errors)):
        foreign.add("", entry.size_bytes)
    survey.errors.extend(error for error in errors if error not in survey.errors)
    if as_json:
        print_json(_as_json(store, survey, record, foreign, cap_bytes))
    else:
        _print(store, survey, record, foreign, cap_bytes)


def _as_json(
    store: StoreRoot, survey: Survey, record: Record, foreign: _Foreign, cap_bytes: int | None
) -> dict[str, object]:
    namespaces = [
        {**namespace_json(one), "foreign_bytes": foreign.sizes.get(one.info.name, 0)}
        for one in survey.namespaces
    ]
    return {
        "root": store.path,
        "counted_bytes": survey.counted_bytes,
        "foreign_entries": foreign.entries,
        "foreign_bytes": sum(foreign.sizes.values()),
        "foreign_bytes_in_root": foreign.sizes.get("", 0),
        "cap_bytes": cap_bytes,
        "file_system": _file_system(store),
        "record": record_json(record),
        "namespaces": namespaces,
        "errors": survey.errors,
    }


def record_json(record: Record) -> dict[str, object]:
    """What the usage record says."""
    usage = record.usage
    if usage is None:
        return {"state": record.state.value}
    return {
        "state": record.state.value,
        "used_bytes": usage.used_bytes,
        "promised_bytes": _promised(record),
        "counts": usage.counts,
        "counted_s": usage.counted_s,
        "writers": {name: entry.promised_bytes for name, entry in usage.writers.items()},
    }


def record_lines(record: Record, counted_bytes: int) -> list[str]:
    """The same for people, compared with what was found."""
    usage = record.usage
    if usage is None:
        return [f"usage record   {record.state.value}; an engine, or `kvoffload gc`, makes it anew"]
    if usage.used_bytes is None:
        return ["usage record   nobody has counted yet; an engine with a cap, or `kvoffload gc`, does"]
    promised = _promised(record)
    more = usage.used_bytes - counted_bytes - promised
    verdict = (
        "as found" if more == 0 else f"{size_text(abs(more))} {'more' if more > 0 else 'LESS'} than found"
    )
    if more and usage.writers:
        verdict += " (it moves while engines work)"
    return [
        (
            f"usage record   {size_text(usage.used_bytes)}, of these {size_text(promised)} promised to "
            f"{len(usage.writers)} writer(s); {verdict}"
        ),
        f"last count     {time_text(round(usage.counted_s * _NANOSECONDS)) if usage.counts else 'never'}",
    ]


def _promised(record: Record) -> int:
    return 0 if record.usage is None else sum(entry.promised_bytes for entry in record.usage.writers.values())


def _print(
    store: StoreRoot, survey: Survey, record: Record, foreign: _Foreign, cap_bytes: int | None
) -> None:
    rows = [_row(one, foreign.sizes.get(one.info.name, 0)) for one in survey.namespaces]
    if rows:
        columns = ("namespace", "chunks", "temp files", "directories", "foreign", "counted")
        print_table(columns, rows, right=columns[1:])
        say("")
    say(f"counted        {size_text(survey.counted_bytes)} (chunks, temporary files, 4 KiB a directory)")
    say(f"foreign        {size_text(sum(foreign.sizes.values()))} in {foreign.entries} entries (not counted)")
    for line in record_lines(record, survey.counted_bytes):
        say(line)
    if cap_bytes is None:
        say("cap            not in the store: it is max_bytes of each engine; compare with --max-bytes SIZE")
    else:
        share = survey.counted_bytes / cap_bytes if cap_bytes else float("inf")
        say(f"cap            {size_text(cap_bytes)}, {share:.1%} of it counted")
    space = _file_system(store)
    if space is not None:
        say(f"file system    {size_text(space['free_bytes'])} free of {size_text(space['total_bytes'])}")
    for error in survey.errors:
        warn(error)


def _row(one: NamespaceSurvey, foreign_bytes: int) -> list[str]:
    orphans = sum(temp.is_orphan for temp in one.temps)
    dead = f", {orphans} of dead writers" if orphans else ""
    return [
        one.info.name,
        f"{size_text(one.chunk_bytes)} ({one.chunks:,})",
        f"{size_text(one.temp_bytes)} ({len(one.temps)}{dead})",
        size_text((one.directories + 1) * DIRECTORY_BYTES),
        size_text(foreign_bytes),
        size_text(one.counted_bytes),
    ]


def _file_system(store: StoreRoot) -> dict[str, int] | None:
    try:
        found = store.disk.statvfs(store.path)
    except OSError:
        return None
    block = found.f_frsize or found.f_bsize
    return {"free_bytes": found.f_bavail * block, "total_bytes": found.f_blocks * block}
