"""What `kvoffload gc` does."""

from __future__ import annotations

import time

from kvoffload.cli.store.output import looking, size_text, warn
from kvoffload.cli.store.removing import Outcome, carry_out, tell
from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.cleaning import Cleaner
from kvoffload.tiers.fs.collecting import Bounds
from kvoffload.tiers.fs.store_root import StoreRoot
from kvoffload.tiers.fs.tidying import count_and_plan, make_plan

_NANOSECONDS = 1_000_000_000


def run_gc(
    store: StoreRoot,
    namespace: str | None,
    limits: tuple[int | None, float | None],
    *,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Collect; returns whether everything that was wanted is done.

    Args:
        store: The store.
        namespace: Only this one.
        limits: (bytes that may stay, seconds since the last use).
        dry_run: Change nothing.
        as_json: How to tell.
    """
    max_bytes, age_s = limits
    chosen = store.select(namespace)
    not_before_ns = None if age_s is None else round((time.time() - age_s) * _NANOSECONDS)
    bounds = Bounds(max_bytes, not_before_ns)
    accounts = Accounts(store)
    if dry_run:
        with looking(hidden=as_json) as accounts.seen:
            plan = make_plan(store, chosen, accounts, bounds)
        outcome = Outcome(store, plan, None, accounts)
    else:
        accounts.open()
        try:
            with looking(hidden=as_json) as accounts.seen:
                if namespace is None:
                    plan = count_and_plan(store, accounts, bounds)
                else:
                    plan = make_plan(store, chosen, accounts, bounds)
            cleaner = Cleaner(store, accounts)
            cleaned = carry_out(cleaner, plan.removals, "collecting", as_json=as_json)
        finally:
            accounts.close()
        outcome = Outcome(store, plan, cleaned, accounts)
    # By the plan: what an engine uses or stores while gc works is no fault of gc, and what failed is told by itself.
    is_met = max_bytes is None or outcome.planned_left_bytes <= max_bytes
    tell(outcome, as_json=as_json, is_dry=dry_run, more={"is_bound_met": is_met})
    if not is_met and not as_json:
        warn(
            f"the bound is not met: {size_text(outcome.planned_left_bytes)} are no chunks, or may not be removed"
        )
    return is_met and not outcome.problems
