"""Inject faults into a broker under load, and check the history of its clients.

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

from tests.faults.chaos.failures import ChaosFailure
from tests.faults.chaos.faulty_disk_broker import DISK_FAULTS, FaultyDiskBroker
from tests.faults.chaos.jumping_clock_broker import JumpingClockBroker
from tests.faults.chaos.killed_broker import KilledBroker
from tests.faults.chaos.rounds import BrokerUnderTest, run
from tests.faults.chaos.starved_broker import StarvedBroker
from tests.faults.chaos.upgrade_rounds import run_upgrades
from warren.core.errors import ExitStatus

FAULTS = ("kill", *DISK_FAULTS, "descriptors", "clock", "upgrade")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="rounds of kill and power; a quarter as many of the others (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the schedule (default: the time)"
    )
    parser.add_argument("--fault", choices=FAULTS, help="inject only this fault (default: all)")
    options = parser.parse_args(arguments)
    # Disk failures are injected; their log lines are noise.
    logging.disable(logging.CRITICAL)
    print(f"seed {options.seed}", flush=True)
    closing = []
    for fault in [options.fault] if options.fault else FAULTS:
        folder = Path(tempfile.mkdtemp(prefix="warren-chaos-"))
        rounds = options.rounds if fault in ("kill", "power", options.fault) else max(1, options.rounds // 4)
        try:
            closing.append(run_rounds(fault, rounds, folder, options.seed))
        except ChaosFailure as error:
            report = f"chaos: {fault}: seed {options.seed}: {error}; history and data folder are in {folder}"
            print(report, file=sys.stderr)
            return ExitStatus.FAILED
        shutil.rmtree(folder)
    print("; ".join(closing) + "; no fault")
    return ExitStatus.SUCCESS


def run_rounds(fault: str, rounds: int, folder: Path, seed: int) -> str:
    """Run the rounds of one fault; return a line about what they reached.

    :raises ChaosFailure: a guarantee is broken.
    """

    def report(line: str) -> None:
        print(f"{fault}: {line}", flush=True)

    if fault == "upgrade":
        return f"{rounds} rounds of upgrade: {run_upgrades(rounds, Random(seed), folder, report)}"
    under_test = broker(fault, folder, Random(seed + 1))
    total = asyncio.run(run(under_test, Random(seed), rounds, folder, report=report))
    return (
        f"{rounds} rounds of {fault}: {total.confirmed} confirmed, {total.durable} safely settled, "
        f"{under_test.figures()}"
    )


def broker(fault: str, folder: Path, random: Random) -> BrokerUnderTest:
    if fault == "kill":
        return KilledBroker(folder / "data", random)
    if fault == "descriptors":
        return StarvedBroker(folder / "data", random)
    if fault == "clock":
        return JumpingClockBroker(folder / "data", random)
    return FaultyDiskBroker(folder, random, fault)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
