"""What `kvoffload purge` does."""

from __future__ import annotations

import sys

from kvoffload.cli.store.output import looking, shown, size_text, warn
from kvoffload.cli.store.removing import Outcome, carry_out, tell
from kvoffload.errors import ConfigError
from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.cleaning import Cleaner
from kvoffload.tiers.fs.collecting import Bounds, Kind, totals
from kvoffload.tiers.fs.store_root import StoreRoot
from kvoffload.tiers.fs.tidying import Plan, make_plan


def run_purge(store: StoreRoot, namespace: str | None, *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Purge; returns whether everything that was wanted is gone.

    Raises:
        ConfigError: nobody can be asked, and `yes` was not given.
    """
    chosen = store.select(namespace)
    accounts = Accounts(store)
    with looking(hidden=as_json) as accounts.seen:
        plan = make_plan(store, chosen, accounts, Bounds(everything=True))
    if dry_run:
        tell(Outcome(store, plan, None, accounts), as_json=as_json, is_dry=True)
        return not plan.survey.errors
    if not yes and not _is_confirmed(store, plan, as_json=as_json):
        return False
    accounts.open()
    try:
        cleaner = Cleaner(store, accounts)
        cleaned = carry_out(cleaner, plan.removals, "purging", as_json=as_json)
        # An engine that runs needs its namespace's directory, and says with it what it is.
        if not _others(plan, accounts):
            for info in chosen:
                cleaner.remove_namespace(info)
    finally:
        accounts.close()
    outcome = Outcome(store, plan, cleaned, accounts)
    tell(outcome, as_json=as_json, is_dry=False)
    return not outcome.problems


def _others(plan: Plan, accounts: Accounts) -> int:
    """How many engines are known to use the store."""
    return len(set(plan.observer.live_writers) - {accounts.here.text})


def _is_confirmed(store: StoreRoot, plan: Plan, *, as_json: bool) -> bool:
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            f"purge of {store.path}: there is nobody to ask; give --yes, or look first with --dry-run"
        )
    chunks, size = totals(plan.removals)[Kind.CHUNK]
    names = ", ".join(one.info.name for one in plan.survey.namespaces if one.info.is_ours)
    engines = len(plan.observer.live_writers)
    if engines:
        warn(f"{engines} engine(s) use this store now; they will go on without these chunks")
    question = (
        f"Remove {chunks:,} chunks ({size_text(size)}) of {names or 'no namespace'} in {store.path}? [y/N] "
    )
    print(shown(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
