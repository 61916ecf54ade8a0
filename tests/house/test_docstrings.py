"""Docstrings: every module has one, and none begins with a headless clause ("What ...", "Whether ...", "It ...").

The first line of a function's docstring is an imperative ("Return the queues."), that of a module, a class or an attribute a
noun phrase ("Seconds until a retry."). ruff's D401 holds the imperative mood of functions; this test holds what ruff cannot.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CLEAN = ["benchmarks", "broker", "cli", "core", "examples", "patterns", "pipeline", "sdk", "tests", "wire"]
"""Folders that keep the rule."""

HEADLESS = re.compile(
    r"(What|Who|Whose|Whom|How|Where|When|Whether|That|So|Which|Why|If|As|While|There|It|Its|They|He|She"
    r"|Nothing|Somebody|Something|Nobody|Once|After|Before|Until|In case|Because)\b"
)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of the module, its classes and functions, and of documented attributes."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        for before, statement in zip([None, *node.body], node.body, strict=False):
            documents = statement is first or isinstance(before, ast.Assign | ast.AnnAssign)
            if documents and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    yield statement.lineno, value.strip()


def modules(folder: str) -> list[Path]:
    path = ROOT / folder
    assert path.exists(), folder
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@pytest.mark.parametrize("folder", CLEAN)
def test_no_docstring_begins_with_a_headless_clause(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in modules(folder)
        for line, text in docstrings(tree_of(path))
        if HEADLESS.match(text)
    ]
    assert found == []


@pytest.mark.parametrize("folder", CLEAN)
def test_every_module_has_a_docstring(folder: str) -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in modules(folder)
        if ast.get_docstring(tree_of(path)) is None
    ]
    assert silent == []
