"""`kvoffload du` and `gc` of an object store: what is there, and what is removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kvoffload.cli.obj_option import config_of
from kvoffload.cli.store.object_uploads import sweep_uploads
from kvoffload.cli.store.output import print_json, print_table, say, size_text, time_text
from kvoffload.tiers.obj.store_view import NamespaceView, StoreView
from kvoffload.tiers.obj.sweeping import SweepPlan

_NANOSECONDS = 1_000_000_000


def report_objects(address: str, *, as_json: bool) -> None:
    """What `kvoffload du` does with an object store. Changes nothing."""
    config = config_of(address)
    store = StoreView(config)
    views = store.select(None)
    rows = [_usage(view) for view in views]
    uploads = sweep_uploads(config, views, dry_run=True)
    if as_json:
        told = {"store": store.address, "namespaces": rows, "foreign_objects": store.foreign}
        print_json(told | {"uploads": uploads.as_json()})
        return
    columns = ("namespace", "chunks", "objects", "bytes", "journal", "orphans", "oldest", "newest")
    cells = [
        [
            str(row["namespace"]),
            str(row["chunks"]),
            str(row["objects"]),
            size_text(_number(row, "bytes")),
            f"{size_text(_number(row, 'journal_bytes'))} ({row['journal_objects']})",
            f"{size_text(_number(row, 'orphan_bytes'))} ({row['orphans']})",
            _time(row["oldest_s"]),
            _time(row["newest_s"]),
        ]
        for row in rows
    ]
    print_table(columns, cells, right=columns[1:6])
    say(f"\nforeign objects  {store.foreign} (never touched)\n{uploads.text()}")


def collect_objects(
    address: str,
    namespace: str | None,
    limits: tuple[int | None, float | None],
    *,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """What `kvoffload gc` does with an object store.

    Args:
        address: The store, as for `--obj`.
        namespace: Only this one.
        limits: (bytes that may stay in each namespace, seconds since it was written); they go before those of the address.
        dry_run: Change nothing.
        as_json: How to tell.

    Returns:
        Whether the bound is met.
    """
    config = config_of(address)
    max_bytes, age_s = limits
    if max_bytes is not None:
        config = dataclasses.replace(config, max_bytes=max_bytes)
    if age_s is not None:
        config = dataclasses.replace(config, ttl_s=age_s)
    store = StoreView(config)
    views = store.select(namespace)
    rows = [_collect(view, dry_run=dry_run) for view in views]
    uploads = sweep_uploads(config, views, dry_run=dry_run)
    is_met = config.max_bytes is None or all(_number(row, "left_bytes") <= config.max_bytes for row in rows)
    if as_json:
        told = {"store": store.address, "dry_run": dry_run, "is_bound_met": is_met, "namespaces": rows}
        print_json(told | {"uploads": uploads.as_json()})
        return is_met
    columns = ("namespace", "expired", "beyond the cap", "orphans", "journal merged", "left")
    cells = [
        [str(row[name]) for name in ("namespace", "expired", "superfluous", "orphans", "merged")]
        + [size_text(_number(row, "left_bytes"))]
        for row in rows
    ]
    print_table(columns, cells, right=columns[1:])
    say(f"\n{'would be removed; nothing was changed' if dry_run else 'removed'}\n{uploads.text()}")
    return is_met


def _usage(view: NamespaceView) -> dict[str, object]:
    survey = view.sweeper.survey()
    orphans = view.sweeper.plan(survey).orphans
    times = [info.modified_s for info in survey.data.values()]
    return {
        "namespace": view.name,
        "chunks": view.around.catalogue.chunks,
        "objects": len(survey.data),
        "bytes": survey.data_bytes,
        "journal_objects": len(survey.journal),
        "journal_bytes": survey.journal_bytes,
        "orphans": len(orphans),
        "orphan_bytes": sum(info.size_bytes for info in orphans),
        "oldest_s": min(times, default=None),
        "newest_s": max(times, default=None),
    }


def _collect(view: NamespaceView, *, dry_run: bool) -> dict[str, object]:
    survey = view.sweeper.survey()
    plan = view.sweeper.plan(survey)
    left = survey.data_bytes - _removed_bytes(plan)
    if not dry_run:
        view.sweeper.carry_out(plan)
    return _removals(view, plan) | {"left_bytes": left}


def _removals(view: NamespaceView, plan: SweepPlan) -> dict[str, object]:
    return {
        "namespace": view.name,
        "expired": len(plan.expired),
        "superfluous": len(plan.superfluous),
        "orphans": len(plan.orphans),
        "merged": len(plan.merged),
        "removed_bytes": _removed_bytes(plan),
    }


def _removed_bytes(plan: SweepPlan) -> int:
    held = sum(one.size_bytes for one in (*plan.expired, *plan.superfluous))
    return held + sum(info.size_bytes for info in plan.orphans)


def _number(row: Mapping[str, object], name: str) -> int:
    value = row[name]
    assert isinstance(value, int), (name, value)
    return value


def _time(value: object) -> str:
    return time_text(round(value * _NANOSECONDS) if isinstance(value, float) else None)
