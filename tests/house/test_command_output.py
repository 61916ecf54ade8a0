"""One module writes to standard output and standard error, and one draws progress bars: no other module prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "wire", "cli", "sdk", "patterns", "broker", "pipeline", "examples/warren")
WRITERS = {
    "core/warren/core/command_output.py",
    "core/warren/core/log_output.py",
    "core/warren/core/progress_bars.py",
    "cli/warren/cli/standard_streams.py",
}
"""The writer of all commands, the log's handler, progress bars, and the reader of standard input."""
CALLS = re.compile(r"print|(typer|click)\.(echo|secho|confirm|prompt|progressbar|echo_via_pager|style)")
STREAMS = re.compile(r"sys\.(__)?(stdin|stdout|stderr)(__)?")


def prints(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each place in a module that prints or uses a standard stream itself."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and CALLS.fullmatch(ast.unparse(node.func)):
            yield node.lineno, ast.unparse(node.func)
        elif isinstance(node, ast.Attribute) and STREAMS.fullmatch(ast.unparse(node)):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            yield from ((node.lineno, f"sys.{each.name}") for each in node.names if each.name[:3] == "std")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            yield from ((node.lineno, name) for name in names if name and name.partition(".")[0] == "rich")


def test_only_the_writer_prints() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in WRITERS
        for line, what in prints(path.read_text(encoding="utf-8"))
    ]
    assert not found, "use warren.core.command_output, which escapes text from messages: " + "; ".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "print('x')",
        "import typer\ntyper.echo('x')",
        "import click\nclick.secho('x')",
        "import sys\nsys.stdout.write('x')",
        "import sys\nsys.__stderr__.flush()",
        "import sys\nout = sys.stderr",
        "from sys import stdout",
        "from rich.console import Console",
        "import rich.table",
    ],
)
def test_the_search_finds_each_way_to_print(text: str) -> None:
    assert list(prints(text))


def test_the_search_ignores_other_names() -> None:
    assert not list(prints("from pprint import pformat\nfingerprint('x')\nimport richer\nsys.argv"))
