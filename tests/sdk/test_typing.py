"""Type checking: replies are inferred, and unsuitable handlers are rejected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_sees_what_it_should(tmp_path: Path) -> None:
    """`--strict` warns of an unused ignore, so that what should be an error in typed.py has to be one."""
    check("mypy", "--cache-dir", str(tmp_path), "--follow-imports", "silent")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_sees_the_same() -> None:
    check("pyright")


def check(checker: str, *options: str) -> None:
    # pyright resolves imports as the interpreter that is first on the path does.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    roots = os.pathsep.join(str(ROOT / root) for root in ("core", "sdk", "wire", "broker"))
    checked = subprocess.run(
        [sys.executable, "-m", checker, *options, "tests/sdk/typed.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"PATH": path, "PYTHONPATH": roots, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
