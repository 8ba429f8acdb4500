"""What the store tools are made of: plans, the throttle, the reading of one chunk, the mending of a description."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import hypothesis.strategies as st
from fs_support import make_namespace
from hypothesis import given, settings

from kvoffload.tiers.fs.collecting import Bounds, Collector, Kind, Reason, plan_collection
from kvoffload.tiers.fs.directory import DIRECTORY_BYTES, FoundFile, Leaf
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.mending import find_description
from kvoffload.tiers.fs.namespace_file import write_namespace
from kvoffload.tiers.fs.store_root import NamespaceInfo, NamespaceState, describe
from kvoffload.tiers.fs.survey import NamespaceSurvey, Survey, TempFile
from kvoffload.tiers.fs.verifying import Throttle
from kvoffload.tiers.fs.writer import new_writer

INFO = NamespaceInfo("m_0123456789abcdef", "/s/m_0123456789abcdef", NamespaceState.READABLE)
leaves = st.dictionaries(
    st.tuples(st.sampled_from(["00", "01", "ff"]), st.sampled_from(["00", "01", "ff"])),
    st.tuples(st.lists(st.integers(1, 100), max_size=4), st.integers(0, 1), st.integers(0, 1)),
    max_size=6,
)


def surveyed(tree: dict[tuple[str, str], tuple[list[int], int, int]]) -> tuple[Survey, Collector]:
    """A survey of directories: (times of use of the chunks, orphans, foreign entries)."""
    one, collector, numbers = NamespaceSurvey(INFO), Collector(), itertools.count()
    for outer in sorted({outer for outer, _ in tree}):
        collector.see(INFO, Leaf(outer, (), (), 0))
        one.directories += 1
    for (outer, inner), (times, orphans, foreign) in sorted(tree.items()):
        chunks = tuple(FoundFile(f"{outer}{inner}{next(numbers):060x}_g0.kv", 8192, time) for time in times)
        temps = tuple(FoundFile("temp", 100, 0) for _ in range(orphans))
        collector.see(INFO, Leaf(f"{outer}/{inner}", chunks, temps, foreign))
        one.directories += 1
        one.chunks += len(chunks)
        one.chunk_bytes += 8192 * len(chunks)
        one.temps += [TempFile(f"{INFO.path}/{outer}/{inner}/temp", 100, 0, True) for _ in temps]
    return Survey([one]), collector


@settings(max_examples=100, deadline=None)
@given(tree=leaves, max_bytes=st.integers(0, 300_000), not_before=st.integers(0, 100))
def test_a_plan_removes_the_oldest_and_no_more_than_the_bound_demands(
    tree: dict[tuple[str, str], tuple[list[int], int, int]], max_bytes: int, not_before: int
) -> None:
    survey, collector = surveyed(tree)
    times = sorted(time for found, _, _ in tree.values() for time in found)
    plan = list(plan_collection(survey, collector, Bounds(max_bytes, not_before)))
    gone = [one for one in plan if one.kind is Kind.CHUNK]
    assert [one.used_ns for one in gone] == times[: len(gone)]
    left = survey.counted_bytes - sum(one.size_bytes for one in plan)
    if len(gone) < len(times):
        assert left <= max_bytes
        assert times[len(gone)] >= not_before
    last = gone[-1] if gone else None
    if last is not None and last.reason is Reason.OVER_BOUND:
        assert left + last.size_bytes + 2 * DIRECTORY_BYTES > max_bytes


@settings(max_examples=100, deadline=None)
@given(tree=leaves)
def test_a_plan_names_exactly_the_directories_that_will_be_empty_the_inner_ones_first(
    tree: dict[tuple[str, str], tuple[list[int], int, int]],
) -> None:
    survey, collector = surveyed(tree)
    plan = list(plan_collection(survey, collector, Bounds(everything=True)))
    named = [one.path for one in plan if one.kind is Kind.DIRECTORY]
    full = {pair for pair, (_, _, foreign) in tree.items() if foreign}
    inner = {f"{INFO.path}/{a}/{b}" for a, b in tree if (a, b) not in full}
    outer = {f"{INFO.path}/{a}" for a, _ in tree} - {f"{INFO.path}/{a}" for a, _ in full}
    assert sorted(named) == sorted(inner | outer)
    assert named == sorted(named, key=len, reverse=True)
    orphans = sum(count for _, count, _ in tree.values())
    assert sum(one.kind is Kind.TEMP for one in plan) == orphans


def test_a_throttle_lets_no_more_through_than_allowed_however_many_ask() -> None:
    now = [0.0]
    throttle = Throttle(100.0, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    for _ in range(10):
        throttle(50)
    assert now[0] == 4.5
    Throttle(None, lambda: 1 / 0, lambda _: None)(10**12)


def test_a_description_is_found_again_wherever_it_was_cut_behind_its_fields(tmp_path: Path) -> None:
    namespace = make_namespace()
    directory = tmp_path / namespace.directory_name
    directory.mkdir()
    write_namespace(DiskIO(), str(directory), namespace, new_writer().temp_name(1))
    file = directory / "namespace.json"
    text = file.read_text()
    end_of_fields = text.index("}") + 1
    for length in range(0, len(text), 7):
        file.write_text(text[:length])
        info = describe(DiskIO(), str(tmp_path), directory.name)
        found = find_description(DiskIO(), info)
        if info.state is NamespaceState.READABLE:
            continue
        assert (found == namespace) is (length >= end_of_fields), length


def test_a_description_with_a_changed_field_is_damage_and_not_believed(tmp_path: Path) -> None:
    namespace = make_namespace()
    directory = tmp_path / namespace.directory_name
    directory.mkdir()
    write_namespace(DiskIO(), str(directory), namespace, new_writer().temp_name(1))
    values = json.loads((directory / "namespace.json").read_text())
    values["fields"]["layout_version"] = 2
    (directory / "namespace.json").write_text(json.dumps(values))
    info = describe(DiskIO(), str(tmp_path), directory.name)
    assert info.state is NamespaceState.DAMAGED
    assert info.identity is None
    assert find_description(DiskIO(), info) is None


def test_a_directory_that_was_renamed_by_hand_is_told_apart_from_damage(tmp_path: Path) -> None:
    namespace = make_namespace()
    directory = tmp_path / "renamed_0123456789abcdef"
    directory.mkdir()
    write_namespace(DiskIO(), str(directory), namespace, new_writer().temp_name(1))
    info = describe(DiskIO(), str(tmp_path), directory.name)
    assert (info.state, info.detail) == (NamespaceState.MISPLACED, namespace.directory_name)
