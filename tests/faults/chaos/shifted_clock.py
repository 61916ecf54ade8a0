"""`warren` with a machine's clock that a test sets: python -m tests.faults.chaos.shifted_clock FILE ARGUMENTS...

FILE holds the seconds by which the clock is ahead, as a double. The test changes it while the program runs.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path

_OFFSET = struct.Struct("<d")


def set_offset(path: Path, seconds: float) -> None:
    """Set the clock of the programs that run with this file; create the file if it is missing."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(_OFFSET.pack(seconds))


def run(path: str, arguments: list[str]) -> None:
    """Run `warren` with these arguments and the clock of the file."""
    with open(path, "rb") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    read = time.time
    time.time = lambda: read() + _OFFSET.unpack_from(offset)[0]
    sys.argv = ["warren", *arguments]
    runpy.run_module("warren.cli.dispatch", run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
