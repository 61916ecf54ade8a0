"""A type checker infers replies and refuses handlers that do not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_mypy_sees_what_it_should(tmp_path: Path) -> None:
    """`--strict` warns of an unused ignore, so that what should be an error in typed.py has to be one."""
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--follow-imports", "silent", "tests/sdk/typed.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env=dict(os.environ),
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
