"""`python -m tests.faults.fuzz`: send invalid input to a broker and report its reactions (`make fuzz`)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.fuzz.run import run_cases
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.processes import free_port

GROWTH_KIB = 16 * 1024
"""Largest growth of the broker's memory after the warm-up, in KiB, over any number of cases."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="number of cases (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random cases (default: %(default)s)")
    options = parser.parse_args()
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="warren-fuzz-") as folder,
        # Without delays of refused logins, of which there are many.
        BrokerProcess(
            Path(folder), *PATIENT, "--log-level", "error", "--management-port", str(port)
        ) as broker,
    ):
        report = run_cases(
            broker.url,
            f"http://127.0.0.1:{port}",
            broker.pid,
            options.cases,
            options.seed,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
        assert broker.child is not None
        errors = broker.child.errors
        status = broker.stop()
    for line in report.lines():
        print(line)
    faults = [
        *(["cases got wrong answers"] if report.wrong else []),
        *(
            [f"the broker grew by {report.growth_kib / 1024:.1f} MiB"]
            if report.growth_kib > GROWTH_KIB
            else []
        ),
        *([f"the broker logged errors:\n{errors[-5000:]}"] if errors.strip() else []),
        *([f"the broker exited with {status}"] if status else []),
    ]
    for fault in faults:
        print(f"fuzz: {fault}", file=sys.stderr)
    print(f"fuzz: {'failed' if faults else 'passed'}: {report.lines()[0]}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
