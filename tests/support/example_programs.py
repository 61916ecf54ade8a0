"""Example programs: run as a reader would run them, with warnings as errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(program: str | Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program, an example by its name, until it ends, for less than five minutes.

    :param environment: added to this process's, of which it gets no URL of a server
    """
    path = program if isinstance(program, Path) else EXAMPLES / f"{program}.py"
    inherited = {name: value for name, value in os.environ.items() if name not in {"AMQP_URL", "REDIS_URL"}}
    # -P: what stands beside the program, or where the tests run, is not in its way.
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", str(path), *arguments],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
