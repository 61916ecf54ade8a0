"""`python -m tests.faults.attacks`: attack a broker, and measure how long another client waits (`make attacks`)."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.faults.attacks.attack import Attack, Target
from tests.faults.attacks.catalogue import attacks
from tests.faults.attacks.witness_process import witness
from tests.support.broker_process import BrokerProcess
from tests.support.processes import free_port, peak_kib, reset_peak, resident_kib

MEMORY_KIB: Final = 192 * 1024
"""Most memory that an attack may take, in KiB: a message of 128 MiB, which a user may send, is the largest single thing."""


def judge(broker: BrokerProcess, target: Target, attack: Attack, limit: float) -> list[str]:
    """Do an attack, print what it did to the broker, and return what of it was harm.

    :param limit: most milliseconds that another client may wait
    """
    before = resident_kib(broker.pid)
    reset_peak(broker.pid)
    failure = ""
    with witness(target.amqp) as seen:
        started = time.monotonic()
        try:
            attack.run(target)
        except (AssertionError, OSError) as error:
            failure = f"{type(error).__name__}: {error}"[:300]
        seconds = time.monotonic() - started
    grown = peak_kib(broker.pid) - before
    waited = seen.slowest * 1000
    faults = [
        *([f"another client waited {waited:.0f} ms"] if waited > limit else []),
        *([f"memory grew by {grown / 1024:.0f} MiB"] if grown > MEMORY_KIB else []),
        *([f"the other client failed: {seen.error}"] if seen.error else []),
        *([failure] if failure else []),
    ]
    print(
        f"{attack.protocol:4} {attack.name:62} {waited:7.0f} ms {grown / 1024:6.0f} MiB {seconds:5.1f} s"
        f"{'  ' if faults else ''}{'; '.join(faults)}",
        flush=True,
    )
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.attacks", description=__doc__)
    parser.add_argument("--only", default="", help="attacks whose names contain this text (default: all)")
    parser.add_argument(
        "--limit",
        type=float,
        default=20.0,
        help="most milliseconds that another client may wait on a quiet machine (default: %(default)s)",
    )
    options = parser.parse_args()
    port = free_port()
    harmful = 0
    chosen = attacks(options.only)
    with (
        tempfile.TemporaryDirectory(prefix="warren-attacks-") as folder,
        BrokerProcess(Path(folder), "--management-port", str(port), "--log-level", "error") as broker,
    ):
        target = Target(broker.url, f"http://127.0.0.1:{port}")
        for attack in chosen:
            harmful += bool(judge(broker, target, attack, options.limit))
        assert broker.child is not None
        errors = broker.child.errors
        status = broker.stop()
    if errors.strip():
        print(f"attacks: the broker logged errors:\n{errors[-5000:]}", file=sys.stderr)
    if status:
        print(f"attacks: the broker exited with {status}", file=sys.stderr)
    failed = bool(harmful or errors.strip() or status)
    print(f"attacks: {'failed' if failed else 'passed'}: {len(chosen)} attacks, {harmful} did harm")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
