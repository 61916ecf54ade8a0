"""Rehearse a migration under load, with kills: `python -m tests.faults.migration --messages 1000000`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.migration.rehearsal import Load, Rehearsal, commit, two_brokers


def main() -> int:
    """Rehearse, print the verdict, and return 0 if it holds."""
    parser = argparse.ArgumentParser(prog="make migration", description=__doc__)
    add = parser.add_argument
    add("--messages", type=int, default=1_000_000)
    add("--queues", type=int, default=50)
    add("--delay-queues", type=int, default=5, help="of the queues, those with a delay")
    add("--delay", type=float, default=30.0, help="seconds")
    add("--source", default="warren", help="warren, or a version of RabbitMQ")
    add("--target", default="4.3", help="warren, or a version of RabbitMQ")
    add("--seed", type=int, default=time.time_ns() & 0xFFFF)
    words = parser.parse_args()
    load = Load(
        queues=words.queues - words.delay_queues,
        delay_queues=words.delay_queues,
        messages=words.messages // words.queues,
        delay_ms=int(words.delay * 1000),
        seed=words.seed,
        patience=3600.0,
    )
    print(f"commit {commit()}, seed {words.seed}, from {words.source} to {words.target}", flush=True)
    with (
        tempfile.TemporaryDirectory() as name,
        two_brokers(words.source, words.target, Path(name)) as brokers,
    ):
        began = time.monotonic()

        def note(text: str) -> None:
            print(f"{time.monotonic() - began:8.1f} s  {text}", flush=True)

        verdict = Rehearsal(*brokers, load, Path(name) / "state", note).run()
    print("\n".join(verdict.lines()))
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
