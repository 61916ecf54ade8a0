"""Harms a broker under load, again and again and in several ways, and judges what its clients saw.

python -m tests.faults.chaos --rounds 20 [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.faults.chaos.kill import Process
from tests.faults.chaos.power import HARMS, Powered
from tests.faults.chaos.rounds import Broken, Subject, run
from warren.core.errors import ExitStatus

WAYS = ("kill", *HARMS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="of kill and power, a quarter of the others (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the schedule (default: the time)"
    )
    parser.add_argument("--way", choices=WAYS, help="only this one (default: all)")
    options = parser.parse_args(arguments)
    # That its disk fails is no news here.
    logging.disable(logging.CRITICAL)
    print(f"seed {options.seed}", flush=True)
    closing = []
    for way in [options.way] if options.way else WAYS:
        folder = Path(tempfile.mkdtemp(prefix="warren-chaos-"))
        rounds = options.rounds if way in ("kill", "power", options.way) else max(1, options.rounds // 4)
        try:
            total = asyncio.run(
                run(
                    subject(way, folder, Random(options.seed + 1)),
                    Random(options.seed),
                    rounds,
                    folder,
                    say=lambda line, way=way: print(f"{way}: {line}", flush=True),  # type: ignore[misc]
                )
            )
        except Broken as error:
            said = f"chaos: {way}: seed {options.seed}: {error}; history and data folder are in {folder}"
            print(said, file=sys.stderr)
            return ExitStatus.FAILED
        shutil.rmtree(folder)
        closing.append(f"{rounds} rounds of {way}: {total.confirmed} confirmed, {total.safe} safely settled")
    print("; ".join(closing) + "; no fault")
    return ExitStatus.SUCCESS


def subject(way: str, folder: Path, random: Random) -> Subject:
    return Process(folder / "data", random) if way == "kill" else Powered(folder, random, way)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
