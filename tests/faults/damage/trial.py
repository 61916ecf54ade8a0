"""One trial: damage one file of a copied folder, start a broker on it twice, and judge what it does."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.faults.damage.expected_state import ExpectedState
from tests.faults.damage.file_damage import Damaged, DamageKind, Place, damage
from tests.faults.damage.filled_folder import FilledFolder
from tests.faults.damage.folder_files import FileKind, data_files
from tests.faults.damage.judge import Start, Verdict, judge
from tests.faults.damage.observed_state import ObservedState, observe, publish_again
from tests.support.blocking_client import Closed
from tests.support.broker_process import PATIENT, READY, BrokerProcess
from tests.support.processes import Child

UNUSED = ("lock", "control.sock")
"""Files that a start may change although it refuses to use the folder."""


@dataclass(frozen=True)
class Trial:
    """A cell of the matrix, with the place of the damage."""

    file: FileKind
    damage: DamageKind
    place: Place
    seed: int

    def random(self) -> Random:
        """Return the source of all choices of this trial."""
        return Random(f"{self.seed} {self.file.name} {self.damage.value} {self.place.value}")


@dataclass(frozen=True)
class TrialResult:
    trial: Trial
    filled: FilledFolder
    damaged: Damaged
    verdict: Verdict


@contextmanager
def copied(filled: FilledFolder) -> Iterator[Path]:
    """Yield a copy of a folder, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="warren-damage-") as parent:
        folder = Path(parent, "data")
        shutil.copytree(filled.path, folder, ignore=shutil.ignore_patterns("control.sock"))
        yield folder


def run_trial(trial: Trial, filled: FilledFolder) -> TrialResult | None:
    """Return the result; None if the folder has no such file, or the file offers no way to do this damage."""
    random = trial.random()
    with copied(filled) as folder:
        path = trial.file.pick(folder, random)
        damaged = path and damage(folder, path, trial.damage, trial.place, random)
        if not damaged:
            return None
        return TrialResult(trial, filled, damaged, judge_folder(folder, damaged.path, filled.expected))


def judge_folder(folder: Path, path: str, expected: ExpectedState, *options: str) -> Verdict:
    """Start a broker on a damaged folder, twice if it starts, and return the judge's verdict.

    :param path: the damaged file.
    :param options: further options of the broker.
    """
    before = contents(folder)
    first = run_broker(folder, expected, "first", *options)
    second = None
    changed: list[str] = []
    if not first.ready:
        after = contents(folder)
        changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    elif first.observed is not None and not first.status:
        second = run_broker(folder, expected, "second")
    return judge(path, expected, first, second, changed)


def contents(folder: Path) -> dict[str, bytes]:
    """Return what a refused start must not change, by path: all files but indexes, without zeros at their ends.

    A start that counts the messages reads the log: it builds missing indexes, and cuts off preallocated zeros.
    """
    return {
        path: (folder / path).read_bytes().rstrip(b"\0")
        for path in data_files(folder)
        if path not in UNUSED and not path.endswith(".idx")
    }


def run_broker(folder: Path, expected: ExpectedState, suffix: str, *options: str) -> Start:
    """Start a broker, publish to all queues, read all that it holds, and stop it."""
    broker = BrokerProcess(folder, *PATIENT, *options)
    with Child(broker.command()) as child:
        try:
            url = child.wait_for_line(READY, 120).removeprefix(READY)
        except AssertionError as error:
            try:
                return Start(False, child.wait(), child.errors)
            except subprocess.TimeoutExpired:
                child.kill()
                return Start(False, None, child.errors, failure=f"not ready: {error}")
        observed, failure, added = None, "", ObservedState()
        try:
            added = publish_again(url, expected, suffix)
            observed = observe(url, folder, expected, added)
        except (OSError, AssertionError, Closed) as error:
            failure = f"{type(error).__name__}: {error}"
        status = child.stop()
        return Start(True, status, child.errors, observed, added, failure)


def accepting_option(line: str) -> str | None:
    """Return the option that a refusal names to accept the loss; None if it names none."""
    named = [option for option in re.findall(r"--[a-z-]+", line) if option != "--data-dir"]
    return named[0] if named else None
