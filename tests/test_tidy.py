"""The house style's ceilings. It is the tail that hurts: one huge class hides more bugs than a hundred small ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "kvoffload"
FILES = sorted(SOURCE.rglob("*.py"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 6
MAX_COMMAND_PARAMETERS = 10
"""Of the commands in cli/: there a parameter is an option that a user sees."""
MAX_BRANCHES = 10

LONGER_ON_PURPOSE: dict[str, str] = {}
"""`file:function` → why it may have up to 70 lines. Keep it empty if you can."""

_BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.match_case, ast.comprehension)
_MARKERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions_of(node: ast.AST) -> Iterator[Function]:
    for child in ast.walk(node):
        if isinstance(child, Function):
            yield child


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside of it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


ALL_FUNCTIONS = [
    (f"{named(path)}:{function.name}", function) for path in FILES for function in functions_of(tree_of(path))
]


def test_a_file_fits_into_a_head() -> None:
    sizes = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: lines for name, lines in sizes.items() if lines > MAX_FILE_LINES} == {}


def test_a_file_says_in_its_first_line_what_it_is_for() -> None:
    docstrings = {named(path): ast.get_docstring(tree_of(path)) for path in FILES}
    assert [name for name, text in docstrings.items() if not text or not text.splitlines()[0].strip()] == []


def test_a_function_fits_on_a_screen() -> None:
    too_long = {}
    for name, function in ALL_FUNCTIONS:
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > (70 if name in LONGER_ON_PURPOSE else MAX_FUNCTION_LINES):
            too_long[name] = lines
    assert too_long == {}


def test_a_function_has_few_parameters() -> None:
    too_many = {}
    for name, function in ALL_FUNCTIONS:
        arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        count = sum(argument.arg not in {"self", "cls"} for argument in arguments)
        if count > (MAX_COMMAND_PARAMETERS if name.startswith("cli/") else MAX_PARAMETERS):
            too_many[name] = count
    assert too_many == {}


def test_a_function_has_few_branches() -> None:
    branches = {
        name: sum(isinstance(node, _BRANCHES) for node in own_nodes(function))
        for name, function in ALL_FUNCTIONS
    }
    assert {name: count for name, count in branches.items() if count > MAX_BRANCHES} == {}


def test_nothing_is_left_to_be_done_in_the_code() -> None:
    left = [
        f"{named(path)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if _MARKERS.search(line)
    ]
    assert left == []


def test_the_list_of_exceptions_names_only_functions_that_are_there() -> None:
    assert LONGER_ON_PURPOSE.keys() <= {name for name, _ in ALL_FUNCTIONS}
    assert len(ALL_FUNCTIONS) > 100, "the source was not found"
