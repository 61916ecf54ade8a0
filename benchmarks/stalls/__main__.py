"""Longest wait of a quiet connection under each load that a single client can cause.

    python -m benchmarks.stalls --bound 50 --out benchmarks/results/DATE-stalls.md

Each load has a broker of its own: a process with a data folder and, unless the table names options, default settings.
The load and the quiet client are processes of their own. Per load the table shows the quiet client's longest wait for the
confirm of a transient and of a persistent publish and for basic.get, until the broker has worked off the load.

On a machine with other programs, part of a wait is theirs: threads of the broker and the quiet client are runnable and
wait for a processor (`queued`). `own` is the rest of a wait, and at least the time that the event loop ran: it is due to
the broker and its disk. The bound applies to it. `busy`, `threads` and `queued` belong to the wait with the longest `own`:
how long the event loop ran, how long other threads of the broker ran, and how long they and the client queued. What
`own` exceeds the sum of `busy` and `threads` by, the disk took; `--folder /dev/shm` measures without a disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import select
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.stalls.catalogue import BY_NAME, LOADS, Load
from benchmarks.stalls.load_client import Control
from tests.support.broker_process import BrokerProcess
from warren.broker.bench import processor_time

BROKER_OPTIONS = ("--stall-threshold", "40")
STALL = re.compile(r"event=broker\.loop_\w+ (ms=.*)")
"""Line of the broker's log about a stall."""
LOAD_NICENESS = 10
"""Niceness of the load: broker and quiet client must not wait for a processor because of it."""
IDLE_SHARE = 0.25
"""Share of a processor below which the broker has worked off a load; the quiet client alone takes less."""
IDLE_CHECKS = 3
CHECK_SECONDS = 0.2
SETTLE_SECONDS = 900.0
"""Longest time that is waited for the preparation of a load, its end, and the broker to have worked it off."""
KINDS = ("publish", "durable", "get")
HEADS = (
    "Load",
    "Publish",
    "Durable publish",
    "Get",
    "own",
    "busy",
    "threads",
    "queued",
    "Longest turn",
    "Load took, s",
    "Processor time, s",
    "Peak, MiB",
)


class Outcome(NamedTuple):
    """Result of one load; times in milliseconds unless named otherwise."""

    load: Load
    size: int
    waits: dict[str, float]
    """For each kind of request the longest wait."""
    causes: dict[str, dict[str, float]]
    """For each kind the wait with the longest part that other programs did not cause, and what the broker did meanwhile."""
    seconds: float
    processor_seconds: float
    peak_mib: float
    turn: str = ""
    """The longest turn of the event loop; with `<=` in front if one of the preparation was longer."""
    stalls: tuple[str, ...] = ()
    """Lines that the broker logged about stalls."""
    failure: str = ""

    @property
    def worst(self) -> dict[str, float]:
        return max(self.causes.values(), key=lambda each: each["own"])

    def describe_causes(self) -> list[str]:
        """Return for each kind of request a line on the wait with the longest part that other programs did not cause."""
        return [
            f"  {kind}: " + " ".join(f"{name}={value:.1f}" for name, value in cause.items() if name != "at")
            for kind, cause in self.causes.items()
        ]

    def row(self) -> str:
        title = self.load.title if self.size == self.load.size else f"{self.load.title}, at {self.size:,}"
        if self.failure:
            return f"| {title} | {self.failure} |" + " |" * (len(HEADS) - 2)
        return (
            f"| {title} | "
            + " | ".join(f"{self.waits[kind]:.0f}" for kind in KINDS)
            + f" | {self.worst['own']:.0f} | {self.worst['busy']:.0f} | {self.worst['threads']:.0f}"
            + f" | {self.worst['queued']:.0f} | {self.turn} | {self.seconds:.1f} | "
            f"{self.processor_seconds:.1f} | {self.peak_mib:.0f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stalls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "loads", nargs="*", metavar="LOAD", help=f"which (default: all): {', '.join(BY_NAME)}"
    )
    parser.add_argument(
        "--bound", type=float, help="fail if the broker let the quiet client wait longer, in milliseconds"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of each load's size (default: %(default)s)"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="whose Warren is measured (default: this one's)"
    )
    parser.add_argument(
        "--causes",
        action="store_true",
        help="print the parts of the longest waits, and stalls that the broker logged",
    )
    parser.add_argument("--out", type=Path, help="write the table there, in Markdown")
    parser.add_argument(
        "--nice", type=int, default=0, help="niceness of broker and quiet client; below 0 as root"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the broker's data is (default: the temporary folder)"
    )
    parser.add_argument("--note", default="", help="a sentence for the head of the table")
    options = parser.parse_args()
    unknown = set(options.loads) - BY_NAME.keys()
    if unknown:
        parser.error(f"no load {', '.join(sorted(unknown))}; there are: {', '.join(BY_NAME)}")
    outcomes = []
    print("\n".join(header()), flush=True)
    for load in LOADS:
        if not options.loads or load.name in options.loads:
            count = max(1, int(load.size * options.share))
            outcomes.append(run(load, count, options.python, options.nice, options.folder))
            print(outcomes[-1].row(), flush=True)
            if options.causes and not outcomes[-1].failure:
                print("\n".join([*outcomes[-1].describe_causes(), *outcomes[-1].stalls]), flush=True)
    lines = [
        "# A quiet connection's longest wait under load",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}, commit {commit()}, {machine(options.python)}. {options.note}".rstrip(),
        f"Command: `python -m benchmarks.stalls {' '.join(sys.argv[1:])}`.",
        "Times in milliseconds. `own` is the longest wait without the time in which broker and client were `queued` for a",
        "processor; the event loop ran for `busy` of it, other threads of the broker for `threads`.",
        "",
        *header(),
        *(outcome.row() for outcome in outcomes),
        "",
    ]
    failed = [outcome.load.name for outcome in outcomes if outcome.failure]
    slow = [] if options.bound is None else [each for each in outcomes if too_long(each, options.bound)]
    if options.bound is not None:
        worst = ", ".join(f"{each.load.name} ({each.worst['own']:.0f} ms)" for each in slow)
        lines += [f"Longer than {options.bound:g} ms: {worst or 'none'}.", ""]
        print("\n" + lines[-2])
    if failed:
        print(f"failed: {', '.join(failed)}")
    if options.out:
        options.out.write_text("\n".join(lines))
    return 1 if failed or slow else 0


def too_long(outcome: Outcome, bound: float) -> bool:
    """Return whether a wait exceeds the bound, less what broker and client waited for a processor that others used."""
    return not outcome.failure and outcome.worst["own"] > bound


def header() -> list[str]:
    return ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]


def run(load: Load, count: int, python: str, niceness: int = 0, parent: Path | None = None) -> Outcome:
    """Run a load against a broker of its own, and measure the waits."""
    with (
        tempfile.TemporaryDirectory(prefix="warren-stalls-", dir=parent) as folder,
        BrokerProcess(
            Path(folder) / "data", "--log-level", "warning", *BROKER_OPTIONS, *load.options, python=python
        ) as broker,
    ):
        control = Control(Path(folder) / "data" / "control.sock")
        assert broker.child is not None
        renice(broker.pid, niceness)
        causing = start("load_process", load.name, str(count), broker.url, str(control.path))
        renice(causing.pid, LOAD_NICENESS)
        quiet: subprocess.Popen[str] | None = None
        try:
            if not expect(causing, "ready"):
                return failure(load, count, "the preparation failed")
            await_idle(broker.pid)
            quiet = start("quiet_process", broker.url, str(broker.pid))
            if not expect(quiet, "ready"):
                return failure(load, count, "the quiet client failed")
            renice(quiet.pid, niceness)
            time.sleep(2 * CHECK_SECONDS)
            logged, prepared = len(broker.child.errors), longest_turn(control)
            used, begun = processor_time.seconds(broker.pid), time.monotonic()
            proceed(causing)
            if not expect(causing, "done"):
                return failure(load, count, "the load failed")
            end = await_idle(broker.pid)
            peak = peak_mib(broker.pid)
            used = processor_time.seconds(broker.pid) - used
            proceed(quiet)
            assert quiet.stdout is not None
            waits = json.loads(quiet.stdout.readline())
            turn = longest_turn(control)
            stalls = tuple(STALL.findall(broker.child.errors[logged:]))
            text = f"{turn}" if turn > prepared else f"<= {turn}"
            return Outcome(
                load, count, waits["longest"], waits["causes"], end - begun, used, peak, text, stalls
            )
        finally:
            for process in (causing, quiet):
                if process is not None:
                    process.kill()
                    process.communicate()


def renice(pid: int, niceness: int) -> None:
    """Set the niceness of all threads of a process, and of its session, which Linux may schedule as a group."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), niceness)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def failure(load: Load, count: int, text: str) -> Outcome:
    return Outcome(load, count, {}, {}, 0.0, 0.0, 0.0, failure=text)


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.stalls.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def expect(process: subprocess.Popen[str], line: str) -> bool:
    """Wait for a line of a process; return False if it ends without, or takes longer than `SETTLE_SECONDS`."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], SETTLE_SECONDS)[0]:
        return False
    return process.stdout.readline().strip() == line


def proceed(process: subprocess.Popen[str]) -> None:
    """Write the line that a process waits for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def await_idle(pid: int) -> float:
    """Wait until the broker has little to do; return the time (monotonic) at which that began."""
    deadline = time.monotonic() + SETTLE_SECONDS
    since = time.monotonic()
    checks = 0
    while checks < IDLE_CHECKS and time.monotonic() < deadline:
        used, begun = processor_time.seconds(pid), time.monotonic()
        time.sleep(CHECK_SECONDS)
        if processor_time.seconds(pid) - used > IDLE_SHARE * (time.monotonic() - begun):
            checks = 0
            since = time.monotonic()
        else:
            checks += 1
    return since


def longest_turn(control: Control) -> int:
    """Return the milliseconds of the longest turn since the broker's start."""
    milliseconds: int = control("status")["Event loop"]["Longest turn (ms)"]
    return milliseconds


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def machine(python: str) -> str:
    """Return processor count, Python version and build of the measured Warren."""
    compiled = subprocess.run(
        [python, "-c", "import warren.wire.content as m; print(m.__file__.endswith('.so'))"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    ).stdout.strip()
    build = "compiled" if compiled == "True" else "plain"
    return (
        f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}, {build} build"
    )


if __name__ == "__main__":
    sys.exit(main())
