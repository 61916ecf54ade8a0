"""Rules of the house that no tool checks: import time of commands, package layout, portable file contents, code in docs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.example_programs import run

ROOT = Path(__file__).parents[2]
FOREIGN = [
    # Paths and addresses of one machine mean nothing elsewhere.
    r"/(home|Users)/[a-z]",
    r"/root/",
    r"/work/",
    r"/tmp/[a-z]",
    r"https?://(10|192\.168|172\.(1[6-9]|2\d|3[01]))\.\d",
    r"index-url",
    r"PIP_INDEX",
]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]


def imported_by(*modules: str) -> set[str]:
    """Return the top-level packages that importing these modules loads, in a fresh interpreter."""
    program = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT / "docs")
    return set(done.stdout.split())


HEAVY = {"aio_pika", "aiormq", "pydantic", "opentelemetry", "redis", "sqlalchemy", "pyspark", "pytest"}


def module_of(command: str) -> str:
    (module,) = {point.module for point in entry_points(group="warren.commands") if point.name == command}
    return module


@pytest.mark.processes
@pytest.mark.parametrize("command", ["broker", "bench", "ctl", "definitions", "completion"])
def test_a_command_that_starts_fast_imports_no_heavy_package(command: str) -> None:
    loaded = imported_by("warren.cli.dispatch", module_of(command))
    assert not loaded & {*HEAVY, "typer", "rich"}


@pytest.mark.processes
@pytest.mark.parametrize("command", ["run", "publish", "call", "topology", "asyncapi"])
def test_a_command_that_uses_the_sdk_imports_it_only_when_it_runs(command: str) -> None:
    assert not imported_by("warren.cli.dispatch", module_of(command)) & HEAVY


def test_every_command_can_be_loaded() -> None:
    for point in entry_points(group="warren.commands"):
        assert callable(point.load()), point


def test_the_namespace_package_has_no_init_file() -> None:
    """`warren` is one namespace over several roots (PEP 420): an `__init__.py` in it would hide the others."""
    assert not [path for path in tracked() if path.name == "__init__.py" and path.parent.name == "warren"]


def test_no_file_names_a_path_or_an_address_of_a_machine() -> None:
    found = []
    for path in tracked():
        if path == Path(__file__) or path.suffix in {".parquet", ".png", ".log"}:
            continue
        text = path.read_text(errors="replace")
        found += [
            f"{path.relative_to(ROOT)}: {line}"
            for rule in FOREIGN
            if re.search(rule, text)
            for line in text.splitlines()
            if re.search(rule, line)
        ]
    assert not found


def test_the_readme_shows_the_test_of_the_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    assert blocks[1] in (ROOT / "examples" / "test_unpaid_order.py").read_text()


@pytest.mark.processes
def test_the_example_in_the_readme_runs(tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    program = tmp_path / "example.py"
    program.write_text(block[1])
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "billed 42\n"), done.stderr


def test_the_documentation_shows_only_files_that_exist() -> None:
    for page in (ROOT / "docs").glob("**/*.md"):
        text = page.read_text()
        ours = re.sub(r"```python[^`]*--8<--[^`]*```", "", text)
        if page.parent.name == "coming-from":  # programs of other tools: tests/sdk/test_coming_from.py
            ours = re.sub(r'```python title="', "", ours)
        assert "```python" not in ours, f"{page.name}: code that no test runs; show a file with --8<--"
        for name in re.findall(r'--8<-- "([^":]+)', text):
            assert (ROOT / name).is_file(), f"{page.name}: {name}"


def test_text_files_are_opened_with_an_encoding() -> None:
    """Without one, the locale decides, and a file that one machine wrote is something else on another."""
    sources = [
        path
        for path in tracked()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] not in ("tests", "benchmarks", "examples")
    ]
    assert len(sources) > 500
    assert not [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sources
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and _decodes_by_locale(call)
    ]


def _decodes_by_locale(call: ast.Call) -> bool:
    """Return whether a call opens, reads or writes a text file, or reads standard input, without an encoding."""
    name = ast.unparse(call.func)
    method = name.rpartition(".")[2]
    if name.startswith("sys.stdin.") and "buffer" not in name:
        return method in ("read", "readline", "readlines")
    if "encoding" in {keyword.arg for keyword in call.keywords}:
        return False
    if name in ("open", "os.fdopen"):
        mode = ast.unparse(call.args[1]) if len(call.args) > 1 else "'r'"
        return "b" not in mode
    if method == "open" and call.args:
        # The mode of `Path.open`; the first argument of other methods of this name is something else.
        return re.fullmatch(r"'[rwax+t]+'", ast.unparse(call.args[0])) is not None
    return method in ("read_text", "write_text")
