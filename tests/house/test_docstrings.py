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


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def docstrings(path: Path) -> tuple[str | None, list[tuple[int, str]]]:
    """Return the docstring of a module, and line and text of all docstrings: its own, of classes, functions, attributes."""
    tree = ast.parse(path.read_text())
    return ast.get_docstring(tree), [found for node in documented(tree) for found in texts(node)]


def documented(node: ast.AST) -> Iterator[Documented]:
    """Yield the module, classes and functions within a node, without a look at expressions, which are most of the tree."""
    if isinstance(node, Documented):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from documented(child)


def texts(node: Documented) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstring of a node, and of those of its attributes."""
    for before, statement in zip([None, *node.body], node.body, strict=False):
        documents = before is None or isinstance(before, ast.Assign | ast.AnnAssign)
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
        for line, text in docstrings(path)[1]
        if HEADLESS.match(text)
    ]
    assert found == []


@pytest.mark.parametrize("folder", CLEAN)
def test_every_module_has_a_docstring(folder: str) -> None:
    silent = [path.relative_to(ROOT).as_posix() for path in modules(folder) if docstrings(path)[0] is None]
    assert silent == []
