"""Fixtures of the tests on the real engine. Without an engine installed nothing here is collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shelf import Shelf, Subject

HAS_ENGINE = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_ENGINE else ["test_*.py"]

_FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder needs an engine; tests that share one stand together, those that kill it come last."""
    ours = [item for item in items if item.path.is_relative_to(__file__.rsplit("/", 1)[0])]
    for item in ours:
        item.add_marker(pytest.mark.engine)
    if not ours:
        return
    from shelf import KINDS

    order = {kind: index for index, kind in enumerate(KINDS)}

    def place(item: pytest.Item) -> tuple[int, bool]:
        kind = getattr(item, "callspec", None) and item.callspec.params.get("subject")
        return (order[kind] if kind else -1, "killed" in item.name)

    positions = [index for index, item in enumerate(items) if item in ours]
    for index, item in zip(positions, sorted(ours, key=place), strict=True):
        items[index] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failed test shows the end of its engines' logs, and what was counted."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
        shelf = getattr(item, "funcargs", {}).get("shelf")
        for name, tail in shelf.logs() if shelf is not None else ():
            report.sections.append((f"engine log {name}", tail))
        subject = getattr(item, "funcargs", {}).get("subject")
        if subject is not None:
            report.sections.append(("kvoffload's metrics", subject.counted()))
    return report


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """All engines and models of the session."""
    from shelf import Shelf

    made = Shelf(tmp_path_factory.mktemp("engines"))
    yield made
    made.close()


@pytest.fixture
def subject(request: pytest.FixtureRequest, shelf: Shelf) -> Iterator[Subject]:
    """A shared engine with the connector, of the kind that the test is marked with; empty before, idle after."""
    found = shelf.subject(request.param)
    found.clear()
    yield found
    if request.node.stash.get(_FAILED, False):
        # Whatever state it is in, the next test shall not suffer from it.
        shelf.drop()
        return
    if found.engine.alive:
        found.assert_idle()
