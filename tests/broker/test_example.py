"""The broker's example in the documentation runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "broker_in_process.py"


def test_a_broker_in_the_process_takes_and_gives_a_message() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello\n", "")
