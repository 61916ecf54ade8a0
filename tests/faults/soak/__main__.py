"""`python -m tests.faults.soak [PART...] [--share 0.05] [--seed N]`: guarantees over large numbers of messages, with
figures.

A part is a module `NAME.py` here with `soak(share, random, folder)`: it runs that share of the whole amount, returns
its measurements as lines, and raises AssertionError if a guarantee was violated.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import tempfile
import time
from pathlib import Path
from random import Random


def main() -> None:
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != "load")
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.soak", description="What must hold over large numbers."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="of the whole amount (default 1)")
    parser.add_argument(
        "--seed", type=int, default=None, help="to do the same again (default: another each time)"
    )
    words = parser.parse_args()
    unknown = set(words.parts) - set(names)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    # What is broken on purpose is logged a lot.
    for name in ("warren", "aiormq"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    seed = Random().getrandbits(32) if words.seed is None else words.seed
    failed = False
    for name in words.parts or names:
        part = importlib.import_module(f"tests.faults.soak.{name}")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="warren-soak-") as folder:
            try:
                figures = part.soak(words.share, Random(seed), Path(folder))
            except AssertionError as error:
                figures, failed = [f"FAILED: {error}"], True
        print(f"{name}: share {words.share:g}, seed {seed}, {time.monotonic() - started:.0f} s")
        for line in figures:
            print(f"  {line}", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
