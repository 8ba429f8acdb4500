"""What gc, purge and verify do with a whole store: survey, plan, and the count that sets the usage record right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.tiers.fs.accounts import Accounts
from kvoffload.tiers.fs.collecting import Bounds, Collector, Removal, plan_collection
from kvoffload.tiers.fs.store_root import NamespaceInfo, StoreRoot
from kvoffload.tiers.fs.survey import Observer, Survey, survey_store


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found, and what shall go."""

    survey: Survey
    observer: Observer
    removals: list[Removal]

    @property
    def left_alone(self) -> list[NamespaceInfo]:
        """Namespaces in which no chunk is removed, because they do not prove to be ours."""
        return [one.info for one in self.survey.namespaces if not one.info.is_ours]


def make_plan(store: StoreRoot, chosen: Sequence[NamespaceInfo], accounts: Accounts, bounds: Bounds) -> Plan:
    """Survey the chosen namespaces and plan; changes nothing."""
    observer, collector = accounts.observer(), Collector()
    survey = survey_store(store, chosen, observer, collector.see)
    return _plan(survey, observer, collector, bounds)


def count_and_plan(store: StoreRoot, accounts: Accounts, bounds: Bounds) -> Plan:
    """The same for all namespaces, setting the usage record right on the way. Only with open `accounts`."""
    baseline = accounts.begin_count()
    observer, collector = accounts.observer(), Collector()
    survey = survey_store(store, store.namespaces, observer, collector.see)
    accounts.end_count(baseline, survey.counted_bytes, is_whole=not survey.errors)
    return _plan(survey, observer, collector, bounds)


def count(store: StoreRoot, accounts: Accounts) -> Survey:
    """Set the usage record right; returns what was found. Only with open `accounts`."""
    baseline = accounts.begin_count()
    survey = survey_store(store, store.namespaces, accounts.observer())
    accounts.end_count(baseline, survey.counted_bytes, is_whole=not survey.errors)
    return survey


def _plan(survey: Survey, observer: Observer, collector: Collector, bounds: Bounds) -> Plan:
    return Plan(survey, observer, list(plan_collection(survey, collector, bounds)))
