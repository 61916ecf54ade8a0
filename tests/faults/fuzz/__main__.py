"""`python -m tests.faults.fuzz`: ill-treats a broker of its own and says how it took it (`make fuzz`)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.fuzz.run import run
from tests.support.broker_process import BrokerProcess

GROWTH_KIB = 16 * 1024
"""How much the broker may grow once it is warm, over any number of cases."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which (default: %(default)s)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="warren-fuzz-") as folder,
        BrokerProcess(Path(folder), "--log-level", "error") as broker,
    ):
        report = run(
            broker.url,
            broker.pid,
            options.cases,
            options.seed,
            told=lambda line: print(line, file=sys.stderr, flush=True),
        )
        assert broker.child is not None
        errors = broker.child.errors
        status = broker.stop()
    for line in report.lines():
        print(line)
    faults = [
        *(["cases were answered wrongly"] if report.wrong else []),
        *(
            [f"the broker grew by {report.growth_kib / 1024:.1f} MiB"]
            if report.growth_kib > GROWTH_KIB
            else []
        ),
        *([f"the broker logged errors:\n{errors[-5000:]}"] if errors.strip() else []),
        *([f"the broker ended with {status}"] if status else []),
    ]
    for fault in faults:
        print(f"fuzz: {fault}", file=sys.stderr)
    print(f"fuzz: {'failed' if faults else 'passed'}: {report.lines()[0]}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
