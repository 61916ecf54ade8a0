"""`python -m tests.ci.step NAME -- COMMAND...`: run one step of a check and record its result.

The output of the step goes to a file in FOLDER, and is printed as a whole if the step fails. With `--tests` the command is a
target of make that runs pytest: tests that fail run once more, after all others, one after the other. A test that passes
then is printed as `flaky: NODEID` and does not fail the step; more than `FLAKY_LIMIT` flaky tests in all steps of a folder
do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

FLAKY_LIMIT: Final = 5
"""Largest number of flaky tests in all steps that are recorded in one folder."""

RECORDS: Final = "steps.jsonl"
"""Name of the file, in the folder of a check, that has one line of JSON for each step."""

_CLOSING_LINE: Final = re.compile(r"^=*\s*(\d+ [a-z]+(?:, \d+ [a-z]+)* in [\d.]+s.*?)\s*=*$", re.MULTILINE)
# make reports the exit status of pytest, and ends with another one itself. pytest's status 1: some tests failed.
_TESTS_FAILED: Final = re.compile(r"^make.*\*\*\* \[.*\] Error 1$", re.MULTILINE)


@dataclass(frozen=True)
class Record:
    """Result of one step."""

    name: str
    passed: bool
    seconds: int
    flaky: list[str]
    """Node ids of tests that failed, and passed when they ran once more."""
    closing: str
    """Closing line of pytest, or why the step failed; empty if there is nothing to say."""


def records(folder: Path) -> list[Record]:
    """Return the results that are recorded in a folder, in the order of the steps."""
    file = folder / RECORDS
    return [Record(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def run(command: Sequence[str], log: Path, limit: float) -> int | None:
    """Run a command with its output in a file, and end all its processes at the time limit.

    :param limit: seconds
    :return: exit status; None if the command was ended
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def text_of(log: Path) -> str:
    """Return the output in a log file."""
    return log.read_text(errors="replace")


def closing_line(log: Path) -> str:
    """Return pytest's last closing line in a log, or an empty string."""
    found = _CLOSING_LINE.findall(text_of(log))
    return str(found[-1]) if found else ""


def failed_tests(cache: Path) -> list[str]:
    """Return the node ids of the tests that failed in the last run, as pytest's cache has them."""
    file = cache / "v/cache/lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def show(log: Path) -> None:
    """Print a log."""
    sys.stdout.write(text_of(log))
    sys.stdout.flush()


def reason(status: int | None, limit: float) -> str:
    """Return why a command failed."""
    if status is None:
        return f"not done within {limit / 60:g} minutes"
    return f"exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"


def run_step(
    name: str, command: Sequence[str], folder: Path, *, tests: bool, output: bool, limit: float
) -> Record:
    """Run a step, print its result, and record it.

    :param tests: the command takes the make variables PYTEST_FLAGS and PARALLEL, and failed tests run once more
    :param output: print the output also if the step passes
    :param limit: seconds
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, cache = folder / f"{name}.log", folder / f"{name}.pytest"
    start = time.monotonic()
    # A cache of its own: what failed in it failed in this run.
    flags = f"-o cache_dir={cache}"
    status = run([*command, f"PYTEST_FLAGS={flags}"] if tests else command, log, limit)
    closing, flaky = closing_line(log), list[str]()
    problem = "" if status == 0 else reason(status, limit)
    if output or problem:
        show(log)
    failed = failed_tests(cache) if tests and status and _TESTS_FAILED.search(text_of(log)) else []
    counted = sum(len(record.flaky) for record in records(folder))
    if failed and counted + len(failed) > FLAKY_LIMIT:
        problem = f"{len(failed)} tests failed"
        if counted:
            problem += f", and {counted} were flaky before"
    elif failed:
        again = folder / f"{name}.again.log"
        only_failed = f"{flags} --last-failed --last-failed-no-failures none"
        status = run([*command, f"PYTEST_FLAGS={only_failed}", "PARALLEL="], again, limit)
        problem = "" if status == 0 else reason(status, limit)
        if problem:
            show(again)
            twice = failed_tests(cache)
            flaky = [test for test in failed if test not in twice]
            if twice:
                problem = f"{len(twice)} of {len(failed)} failed tests failed again"
        else:
            flaky = failed
            closing = closing_line(again)
        for test in flaky:
            print(f"flaky: {test}")
    seconds = round(time.monotonic() - start)
    if closing and not problem:
        print(closing)
    result = "passed" if not problem else f"failed: {problem}"
    print(f"{name}: {result} ({seconds} s)", flush=True)
    record = Record(name, not problem, seconds, flaky, problem or closing)
    with (folder / RECORDS).open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")
    return record


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ci.step", description=__doc__)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("command", metavar="COMMAND", nargs="+")
    parser.add_argument("--folder", type=Path, default=Path("build/checks"), help="default: %(default)s")
    parser.add_argument("--tests", action="store_true", help="run the tests that fail once more")
    parser.add_argument("--output", action="store_true", help="print the output also if the step passes")
    parser.add_argument("--limit", type=float, default=30, metavar="MINUTES", help="default: %(default)s")
    given = parser.parse_args()
    # Its children end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    record = run_step(
        given.name,
        given.command,
        given.folder,
        tests=given.tests,
        output=given.output,
        limit=given.limit * 60,
    )
    return 0 if record.passed else 1


if __name__ == "__main__":
    sys.exit(main())
