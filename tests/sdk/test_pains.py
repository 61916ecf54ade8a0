"""Consistency of pains.toml: each row names existing tests that run."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = 47
PAINS = tomllib.loads((Path(__file__).parent / "pains.toml").read_text())["pain"]


@cache
def found_in(file: str) -> dict[str, bool]:
    """Return the tests of a module as pytest collects them, and whether each is skipped."""
    path = ROOT / file
    assert path.is_file(), file
    assert path.name.startswith("test_"), file
    tree = ast.parse(path.read_text())
    functions = [item for item in tree.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        function.name: any("skip" in ast.unparse(mark) or "xfail" in ast.unparse(mark) for mark in marks)
        for function in functions
        if function.name.startswith("test_")
        for marks in [function.decorator_list]
    }


def test_each_row_stands_there_once() -> None:
    assert [pain["row"] for pain in PAINS] == list(range(1, ROWS + 1))


@pytest.mark.parametrize("pain", PAINS, ids=lambda pain: f"row-{pain['row']}")
def test_a_row_is_answered(pain: dict[str, object]) -> None:
    assert pain["seen"]
    assert pain["what"]
    assert ("tests" in pain) != ("reason" in pain)
    names = pain.get("tests", [])
    assert isinstance(names, list)
    for name in names:
        file, _, function = name.partition("::")
        assert function in found_in(file), f"there is no test {name}"
        assert not found_in(file)[function], f"{name} may be left out"
