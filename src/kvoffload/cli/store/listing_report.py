"""What `kvoffload ls` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvoffload.cli.store.describing import model_of, namespace_json, state_text, what_it_is
from kvoffload.cli.store.output import (
    looking,
    print_json,
    print_table,
    say,
    seconds_of,
    size_text,
    time_text,
    warn,
)
from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.directory import FoundFile, walk_namespace
from kvoffload.tiers.fs.store_root import NamespaceInfo, StoreRoot, collect_errors
from kvoffload.tiers.fs.survey import survey_store


def list_namespaces(store: StoreRoot, chosen: Sequence[NamespaceInfo], *, as_json: bool) -> None:
    """One line a namespace."""
    accounts = Accounts(store)
    with looking(hidden=as_json) as accounts.seen:
        survey = survey_store(store, chosen, accounts.observer())
    if as_json:
        namespaces = [namespace_json(one) for one in survey.namespaces]
        print_json({"root": store.path, "namespaces": namespaces, "errors": survey.errors})
        return
    rows = [
        [
            model_of(one.info),
            one.info.digest_start,
            f"{one.chunks:,}",
            size_text(one.chunk_bytes),
            time_text(one.oldest_ns),
            time_text(one.newest_ns),
            what_it_is(one.info),
            state_text(one.info),
        ]
        for one in survey.namespaces
    ]
    columns = ("model", "digest", "chunks", "bytes", "oldest use", "newest use", "what", "state")
    if rows:
        print_table(columns, rows, right=("chunks", "bytes"))
    else:
        say(f"{store.path}: no namespaces yet")
    for error in survey.errors:
        warn(error)


def list_chunks(store: StoreRoot, chosen: Sequence[NamespaceInfo], *, as_json: bool) -> None:
    """One line a chunk, in the order of the directories."""
    errors: list[str] = []
    if as_json:
        found = [
            {"path": path, "bytes": file.size_bytes, "used_s": seconds_of(file.mtime_ns)}
            for path, file in _chunks(store, chosen, errors)
        ]
        print_json({"root": store.path, "chunks": found, "errors": errors})
        return
    for path, file in _chunks(store, chosen, errors):
        # Line by line and not as a table: there may be millions.
        say(f"{time_text(file.mtime_ns)}  {file.size_bytes:>12}  {path}")
    for error in errors:
        warn(error)


def _chunks(
    store: StoreRoot, chosen: Sequence[NamespaceInfo], errors: list[str]
) -> Iterator[tuple[str, FoundFile]]:
    for info in chosen:
        for leaf in walk_namespace(store.disk, info.path, collect_errors(errors)):
            for file in sorted(leaf.chunks):
                yield f"{info.name}/{leaf.path}/{file.name}", file
